"""C++ with OpenMP: checked with ast, built by the parent's side into a content-addressed cache, loaded with ctypes.

language.py           Cpp: the Language; LOADER_DIRECTORY for a child's sys.path
source.py             what a kernel file says of itself, without running it
compiler.py           the compiler on untrusted text, in bubblewrap where that works
autokernel_loader.py  what a kernel file imports; standard library only; exports carry a copy
"""
