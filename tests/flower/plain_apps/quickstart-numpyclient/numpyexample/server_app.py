"""The server of the app; the record keys are those that Flower uses for a NumPyClient."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from numpyexample.task import TEST_SAMPLES, initial_model, load_digits_in_order, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = int(context.run_config["num-server-rounds"])
    arrays = ArrayRecord(initial_model())
    strategy = FedAvg(
        fraction_evaluate=0.0,
        weighted_by_key="num_examples",
        arrayrecord_key="fitins.parameters",
        configrecord_key="fitins.config",
    )
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=global_evaluate)


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    images, labels = load_digits_in_order()
    model = arrays.to_numpy_ndarrays()
    loss, accuracy = test(model, images[:TEST_SAMPLES], labels[:TEST_SAMPLES])
    return MetricRecord({"accuracy": accuracy, "loss": loss})
