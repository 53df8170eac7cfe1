"""Text: files, tokenizers, normalisation, parallel corpora and gettext catalogs."""
