"""Files of others, read into plain descriptions: `topologies`, `logs` and `recordings`. They know no engine."""
