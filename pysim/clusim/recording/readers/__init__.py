"""One reader per format; `clusim.recording.readers.detect` says which one a file needs."""
