"""Complete releases as trees of hard links, bind-mounted over the mount: the node's own file system serves them."""
