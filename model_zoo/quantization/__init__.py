"""Frozen weights in 8 and 4 bits.

storage.py      the forms (int8, nf4, fp4, int4) and their arrays    codes.py     the values of 4-bit codes
codec.py        float32 to codes and back                            cells.py     the projection, its plain path
plan.py         which matrices of a model                            loading.py   packing and filling them
files.py        bitsandbytes' tensors, in and out                    dequantized.py   what packing leaves of a base
scaled.py       FP8, float32 once read                               additive.py  AQLM, float32 once read
integers.py     GPTQ, AWQ, compressed-tensors; float32 once read where no cell holds it
"""

from model_zoo.quantization.plan import Quantization
from model_zoo.quantization.storage import KINDS, Storage, part_name

__all__ = ["KINDS", "Quantization", "Storage", "part_name"]
