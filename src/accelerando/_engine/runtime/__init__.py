"""The process around a fit: allocator, random generators, memory layout, progress line."""
