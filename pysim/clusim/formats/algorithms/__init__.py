"""Importers of collective algorithms in other tools' formats, as schedules."""
