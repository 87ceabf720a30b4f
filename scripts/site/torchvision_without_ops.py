"""Import hook: let `import torchvision` succeed where its C++ operators can't load.

For virtual environments with a CPU build of torch beside a CUDA build of torchvision. The video processors of
transformers need only torchvision's Python part, but its import stops at "operator torchvision::nms does not
exist", because two operators get a meta implementation before anybody has asked whether they exist. Declaring
their schemas is enough: the declared operators still raise when called.

`torchvision_without_ops.pth` imports this file at the start of every interpreter of the environment, so that child
processes (model inspection, engine cores, workers) have it too. Until torchvision is imported it costs one entry
in `sys.meta_path`; it never imports torch by itself. docs/install.md is the only other place that knows of it.
"""

from __future__ import annotations

import sys

# torchvision/__init__ has tried to load its operators when it imports this module, and this module is the first to need them.
FIRST_USE = "torchvision._meta_registrations"
SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


class DeclareMissingOperators:
    """A finder that finds nothing; it only declares the operators at the moment when they are about to be used."""

    def __init__(self) -> None:
        self.library = None  # the declarations live as long as this object

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name != FIRST_USE or self.library is not None:
            return
        import torch

        missing = [schema for operator, schema in SCHEMAS.items() if not hasattr(torch.ops.torchvision, operator)]
        self.library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in missing:
            self.library.define(schema)


sys.meta_path.insert(0, DeclareMissingOperators())
