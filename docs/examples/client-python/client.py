"""Starts a workload on another node, waits until it has ended, and deletes it."""

import sys

from ankaios_sdk import Ankaios, AnkaiosException, Workload, WorkloadStateEnum

JOB = """\
image: docker.io/library/busybox
commandArgs: ["sleep", "1"]
"""


def main():
    job = Workload.builder().workload_name("job").agent_name("rear").runtime("podman")
    job = job.restart_policy("NEVER").runtime_config(JOB).build()
    with Ankaios() as ankaios:
        print("agents:", ", ".join(sorted(ankaios.get_agents())))
        [instance] = ankaios.apply_workload(job).added_workloads
        print("started:", instance.workload_name, "on", instance.agent_name)
        ankaios.wait_for_workload_to_reach_state(instance, WorkloadStateEnum.SUCCEEDED, timeout=60)
        print("ended:", instance.workload_name)
        ankaios.delete_workload("job")
        try:
            ankaios.delete_workload("client")
        except AnkaiosException as error:
            print("as it should be:", error)


if __name__ == "__main__":
    sys.exit(main())
