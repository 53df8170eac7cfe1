"""Audio: files, manifests, resampling, normalisation, augmentation and batches."""
