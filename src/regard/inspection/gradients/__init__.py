"""Gradient norms by depth, time and parameter."""
