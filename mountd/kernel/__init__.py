"""The kernel's side of the mount: the FUSE protocol over ``/dev/fuse``, spoken directly."""
