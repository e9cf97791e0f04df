"""The client of the app."""

from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp

from numpyexample.task import load_data, test, train


class FlowerClient(NumPyClient):
    def __init__(self, partition: int, partitions: int) -> None:
        self.images, self.labels = load_data(partition, partitions)

    def fit(self, parameters, config):
        model = train(parameters, self.images, self.labels, rate=1.0)
        loss, _ = test(model, self.images, self.labels)
        return model, len(self.labels), {"train_loss": loss}

    def evaluate(self, parameters, config):
        loss, accuracy = test(parameters, self.images, self.labels)
        return loss, len(self.labels), {"accuracy": accuracy}


def client_fn(context: Context) -> Client:
    partition, partitions = (
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
    )
    return FlowerClient(int(partition), int(partitions)).to_client()


app = ClientApp(client_fn)
