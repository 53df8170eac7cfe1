"""Images: files, folders, IDX, augmentation and batches."""
