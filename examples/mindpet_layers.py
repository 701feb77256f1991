"""MindPet's way: replace layers by hand, freeze the rest, train with MindSpore's Model, save what was trained.

python mindpet_layers.py --output trained
"""

import argparse
import os

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import GeneratorDataset
from pet.compat.mindpet.delta import AdapterLayer, LoRADense
from pet.compat.mindpet.graph import TrainableParamsCheckPoint, freeze_delta

from pet.compat.command_line import script

WIDTH, CLASSES = 16, 4


class Network(nn.Cell):
    """A classifier; its projections are LoRADense instead of nn.Dense."""

    def __init__(self):
        super().__init__()
        self.query = LoRADense(WIDTH, WIDTH, lora_rank=4, lora_alpha=16, lora_dropout=0.1, activation="relu")
        self.adapter = AdapterLayer(WIDTH, bottleneck_size=8)
        self.head = LoRADense(WIDTH, CLASSES, lora_rank=4, lora_alpha=16)

    def construct(self, x):
        return self.head(self.adapter(self.query(x)))


class Losses(ms.train.Callback):
    """Prints the loss after every epoch."""

    def epoch_end(self, run_context):
        print(f"loss {float(run_context.original_args().net_outputs.asnumpy()):.4f}", flush=True)


def samples():
    """Points around four centres."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(CLASSES, WIDTH))
    for index in range(64):
        label = index % CLASSES
        yield (centres[label] + 0.1 * random.normal(size=WIDTH)).astype(np.float32), np.int32(label)


def main() -> None:
    """Tunes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="trained")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    ms.set_seed(1)
    network = Network()
    freeze_delta(network, mode="lora")  # the base and the bottleneck adapter stay as they are
    data = GeneratorDataset(list(samples()), column_names=["x", "y"], shuffle=False).batch(16)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=5e-3)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    config = ms.train.CheckpointConfig(save_checkpoint_steps=data.get_dataset_size(), keep_checkpoint_max=1)
    saved = TrainableParamsCheckPoint(os.path.abspath(options.output), prefix="lora", config=config)
    model = ms.Model(network, loss, optimizer)
    model.train(options.epochs, data, callbacks=[Losses(), saved], dataset_sink_mode=False)


if __name__ == "__main__":
    script(main)
