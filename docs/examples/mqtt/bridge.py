"""Applies manifests that arrive on the topic 'vehicle/apply', and publishes what becomes of them.

'vehicle/accepted' gets the numbers of workloads, 'vehicle/refused' the reason, 'vehicle/state/NAME' the state of each
new workload when it is final or has run for some seconds.
"""

import os
import queue
import sys
import time

import paho.mqtt.client as mqtt
from ankaios_sdk import Ankaios, AnkaiosException, Manifest

FINAL = ("SUCCEEDED", "FAILED")
LIMIT = 60
STEADY = 5
manifests = queue.Queue(16)


def on_connect(client, _data, _flags, reason, _properties):
    print("broker:", reason, flush=True)
    client.subscribe("vehicle/apply", qos=1)


def on_message(_client, _data, message):
    manifests.put(message.payload)


def outcome(ankaios, instance):
    """The state of an instance as soon as it is final, or has run for a while: many a fault shows only then."""
    running_since = None
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        now = time.monotonic()
        state = ankaios.get_execution_state_for_instance_name(instance)
        running_since = (running_since or now) if state.state.name == "RUNNING" else None
        if state.state.name in FINAL or running_since and now - running_since > STEADY:
            return f"{state.state.name} {state.additional_info}".strip()
        time.sleep(0.2)
    return f"{state.state.name} after {LIMIT} s"


def main():
    broker = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="bridge", clean_session=False)
    broker.on_connect, broker.on_message = on_connect, on_message
    broker.connect(os.environ["BROKER_HOST"], int(os.environ["BROKER_PORT"]))
    broker.loop_start()
    with Ankaios() as ankaios:
        while True:
            text = manifests.get().decode(errors="replace")
            try:
                success = ankaios.apply_manifest(Manifest.from_string(text))
                added, deleted = len(success.added_workloads), len(success.deleted_workloads)
                broker.publish("vehicle/accepted", f"{added} added, {deleted} deleted", qos=1, retain=True)
                for instance in success.added_workloads:
                    topic = f"vehicle/state/{instance.workload_name}"
                    broker.publish(topic, outcome(ankaios, instance), qos=1, retain=True)
            except (AnkaiosException, TimeoutError, ValueError) as error:
                broker.publish("vehicle/refused", str(error), qos=1, retain=True)


if __name__ == "__main__":
    sys.exit(main())
