"""MindSpore's and MindFormers' `.ckpt` files: reading, writing, and the names of their tensors."""
