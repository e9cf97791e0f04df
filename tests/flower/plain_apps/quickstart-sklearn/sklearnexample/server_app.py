"""The server of the app."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearnexample.task import (
    TEST_SAMPLES,
    create_model,
    get_model_params,
    load_digits_in_order,
    set_model_params,
)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = int(context.run_config["num-server-rounds"])
    arrays = ArrayRecord(get_model_params(create_model(local_epochs=5)))
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=global_evaluate)


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = create_model(local_epochs=5)
    set_model_params(model, arrays.to_numpy_ndarrays())
    images, labels = load_digits_in_order()
    accuracy = model.score(images[:TEST_SAMPLES], labels[:TEST_SAMPLES])
    return MetricRecord({"accuracy": float(accuracy)})
