"""Figures of attention and gates, written as PNG, SVG or PDF."""
