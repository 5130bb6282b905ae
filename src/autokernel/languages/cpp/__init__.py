"""C++ with OpenMP: checked with ast, built by the parent's side from a content-addressed cache, loaded with ctypes."""
