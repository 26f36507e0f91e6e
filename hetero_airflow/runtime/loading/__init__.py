"""The data of a training: batches that are loaded ahead, and a position that a checkpoint keeps."""
