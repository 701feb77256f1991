"""How replicas share an optimizer's state."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from pet.parallel.zero import divide
from pet.train.segments import Segment


@pytest.mark.parametrize(("owners", "most"), [(1, 18), (2, 10), (3, 7), (6, 5)])
def test_the_largest_parameters_are_given_out_first(owners, most):
    """So shares are about even. Each parameter has one owner, and goes on with its segment's settings."""
    sizes = ((3, 3, 5), (3, 4))
    segments = [
        Segment(
            tuple(Parameter(Tensor(np.zeros(n, np.float32)), name=f"{i}.{j}") for j, n in enumerate(part)), i, 2 * i
        )
        for i, part in enumerate(sizes)
    ]
    divided = divide(segments, owners)
    assert sorted(name for _, part in divided for name in part.names) == ["0.0", "0.1", "0.2", "1.0", "1.1"]
    for _, part in divided:
        number = part.learning_rate_ratio
        assert part.weight_decay == 2 * number and all(name.startswith(f"{number}.") for name in part.names)
    loads = [sum(part.size for owner, part in divided if owner == each) for each in range(owners)]
    assert max(loads) == most
