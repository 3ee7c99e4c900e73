"""What heads write into logits where they look at a position: the values that are computed there, through the OV circuit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...circuits.head_matrices import output_matrices, probe, small_batch
from ...circuits.ov_qk import final_norm
from ...circuits.recording import writer_weight
from ...circuits.stream import unembedding_of
from ...errors import Refused
from ...model.anatomy import Anatomy, Site


class Directions:
    """The output matrices of heads and the directions of logits, with the weights of the norms between folded in.

    A logit that is asked for is one among others at one position, so what is the same for all of them is left out: the scale
    of the final norm, and biases behind the head.
    """

    def __init__(self, root: nn.Module, anatomy: Anatomy) -> None:
        weight = unembedding_of(root).weight
        assert isinstance(weight, Tensor)
        self.unembedding = weight
        for site in anatomy.heads:
            wide = len(writer_weight(site))
            if site.attention == "decoder" and wide != weight.shape[1]:
                raise Refused(
                    f"{site.name} writes {wide} numbers and the unembedding reads {weight.shape[1]}: a projection stands "
                    "between, so what a head promotes cannot be told; leave copying and successor heads out."
                )
        self._seen = probe(root, anatomy, small_batch(root))
        self._norm = final_norm(self._seen, self.unembedding.shape[1])
        self._outputs: dict[str, Tensor] = {}

    def logits(self, site: Site, values: Tensor, tokens: Sequence[int]) -> Tensor:
        """What heads add to the logits of these tokens where they look at positions with these values.

        From values (heads, positions, width), logits (heads, positions, tokens).
        """
        outputs = self._outputs_of(site, values)  # (heads, hidden, width)
        rows = self._rows(tokens).to(values.device)  # (tokens, hidden)
        return values.float() @ (rows @ outputs).transpose(1, 2)

    def _outputs_of(self, site: Site, like: Tensor) -> Tensor:
        if site.name not in self._outputs:
            self._outputs[site.name] = output_matrices(site, self._seen).float().to(like.device)
        return self._outputs[site.name]

    def _rows(self, tokens: Sequence[int]) -> Tensor:
        """The directions of these logits at the end of the residual stream."""
        weight, norm = self.unembedding, self._norm
        rows = weight.detach()[torch.tensor(list(tokens), device=weight.device)].float()
        if norm is None:
            return rows
        rows = rows * norm.weight.to(rows)
        return rows - rows.mean(1, keepdim=True) if norm.centred else rows
