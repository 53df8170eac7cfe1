"""Shared parts of the Triton kernels; this file must not import Triton."""
