"""The client of the app."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearnexample.task import create_model, get_model_params, load_data, set_model_params

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = create_model(local_epochs=5)
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    partition, partitions = (
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
    )
    images, labels = load_data(int(partition), int(partitions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few iterations do not converge
        model.fit(images, labels)
    loss = log_loss(labels, model.predict_proba(images), labels=range(10))
    metrics = MetricRecord({"train_logloss": loss, "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(get_model_params(model)), "metrics": metrics})
    return Message(content=content, reply_to=msg)
