"""A client in another language: what an agent and a commander written with grpcio see of ank-server.

Usage: interop.py <scenario> <host:port>. Each function below is a scenario; tests/process/python_client.rs starts the
server with startup.yaml and runs one scenario per test. Exit code 0 means that every assertion held.
"""

import sys

import grpc

import ank_base_pb2 as base
import grpc_api_pb2 as api
from ank_client import LIMIT, Stream, agent, cli, commander, desired, instance, services, state_of, workload

# startup.yaml: `first` on snake, `other` on bear depending on `first`, `free` on nobody.
FIRST = "image: first"
OTHER = "image: other"
FREE = "image: free"


def names(states):
    return sorted(state.instanceName.workloadName for state in states)


def agent_is_greeted_with_foreign_states_and_then_its_workloads(address):
    snake = agent(address, "snake", kind="reptile")
    foreign = snake.expect("updateWorkloadState").workloadStates
    assert names(foreign) == ["free", "other"], foreign
    by_name = {state.instanceName.workloadName: state.executionState for state in foreign}
    assert by_name["other"].pending == base.PENDING_INITIAL and by_name["other"].HasField("pending")
    assert by_name["free"].HasField("notScheduled")
    assert all(state.executionState.HasField("additionalInfo") for state in foreign)

    hello = snake.expect("serverHello")
    assert len(hello.addedWorkloads) == 1, hello
    added = hello.addedWorkloads[0]
    assert added.instanceName == instance("first", "snake", FIRST), added
    assert (added.workload.agent, added.workload.runtime, added.workload.runtimeConfig) == ("snake", "podman", FIRST)
    assert added.workload.restartPolicy == base.ON_FAILURE
    assert dict(added.workload.tags.tags) == {"owner": "python"}

    bear = agent(address, "bear")
    assert names(bear.expect("updateWorkloadState").workloadStates) == ["first", "free"]
    other = bear.expect("serverHello").addedWorkloads[0]
    assert dict(other.workload.dependencies.dependencies) == {"first": base.ADD_COND_RUNNING}

    agents = commander(address).complete_state("agents").agents.agents
    assert sorted(agents) == ["bear", "snake"]
    assert dict(agents["snake"].tags.tags) == {"kind": "reptile"}


def agent_receives_updates_with_delete_conditions(address):
    snake, bear = agent(address, "snake"), agent(address, "bear")
    snake.skip_to("serverHello")
    bear.skip_to("serverHello")
    boss = commander(address)

    answer = boss.update(["desiredState.workloads.extra"], desiredState=desired(extra=workload("snake", "image: extra")))
    extra = instance("extra", "snake", "image: extra")
    assert list(answer.UpdateStateSuccess.addedWorkloads) == [f"extra.{extra.id}.snake"], answer
    assert list(answer.UpdateStateSuccess.deletedWorkloads) == []
    update = snake.skip_to("updateWorkload")
    assert [added.instanceName for added in update.addedWorkloads] == [extra] and not update.deletedWorkloads

    # `other` needs `first` running: whoever deletes `first` is told to wait for `other`.
    answer = boss.update(["desiredState.workloads.first.runtimeConfig"],
                         desiredState=desired(first=base.Workload(runtimeConfig="image: newer")))
    success = answer.UpdateStateSuccess
    assert (len(success.addedWorkloads), len(success.deletedWorkloads)) == (1, 1), answer
    update = snake.skip_to("updateWorkload")
    assert update.addedWorkloads[0].instanceName == instance("first", "snake", "image: newer")
    assert update.addedWorkloads[0].workload.restartPolicy == base.ON_FAILURE, "what no mask names is kept"
    assert update.deletedWorkloads[0].instanceName == instance("first", "snake", FIRST)
    assert dict(update.deletedWorkloads[0].dependencies) == {"other": api.DEL_COND_NOT_PENDING_NOR_RUNNING}

    answer = boss.update(["desiredState.workloads.extra"])
    assert list(answer.UpdateStateSuccess.deletedWorkloads) == [f"extra.{extra.id}.snake"], answer
    update = snake.skip_to("updateWorkload")
    assert update.deletedWorkloads[0].instanceName == extra and not update.deletedWorkloads[0].dependencies
    assert not update.addedWorkloads

    # The bear had no part in any of this.
    boss.update(["desiredState.workloads.last"], desiredState=desired(last=workload("bear", "image: last")))
    assert [added.instanceName.workloadName for added in bear.skip_to("updateWorkload").addedWorkloads] == ["last"]


def states_are_broadcast_to_agents_and_cli_connections(address):
    snake, bear = agent(address, "snake"), agent(address, "bear")
    snake.skip_to("serverHello")
    bear.skip_to("serverHello")
    tool, boss = cli(address), commander(address)
    tool.complete_state("agents")
    # A reconnect refreshes everybody; wait until the snake's own stream is quiet of it.
    snake.send(updateWorkloadState=api.UpdateWorkloadState(
        workloadStates=[state_of("first", "snake", FIRST, pending=base.PENDING_STARTING, info="Triggered at runtime.")]))
    snake.send(updateWorkloadState=api.UpdateWorkloadState(
        workloadStates=[state_of("first", "snake", FIRST, running=base.RUNNING_OK)]))

    for receiver in (bear, tool):
        seen = []
        while not seen or not seen[-1].HasField("running"):
            states = receiver.skip_to("updateWorkloadState").workloadStates
            seen += [state.executionState for state in states if state.instanceName.workloadName == "first"]
        starting = [state for state in seen if state.HasField("pending") and state.pending == base.PENDING_STARTING]
        assert [state.additionalInfo for state in starting] == ["Triggered at runtime."], seen

    bear.send(updateWorkloadState=api.UpdateWorkloadState(
        workloadStates=[state_of("other", "bear", OTHER, succeeded=base.SUCCEEDED_OK)]))
    while True:
        states = snake.skip_to("updateWorkloadState").workloadStates
        assert "first" not in names(states), "an agent is not told its own states"
        if any(state.executionState.HasField("succeeded") for state in states):
            break

    got = boss.complete_state("workloadStates").workloadStates.agentStateMap
    first = got["snake"].wlNameStateMap["first"].idStateMap[instance("first", "snake", FIRST).id]
    assert first.HasField("running") and first.additionalInfo == "", first
    assert boss.incoming.empty(), "a commander gets answers only"

    snake.send(updateWorkloadState=api.UpdateWorkloadState(
        workloadStates=[state_of("first", "snake", FIRST, removed=base.REMOVED)]))
    while "first" in boss.complete_state("workloadStates.snake").workloadStates.agentStateMap.get(
            "snake", base.ExecutionsStatesOfWorkload()).wlNameStateMap:
        pass


def state_without_a_reason_has_that_of_its_text(address):
    snake, bear = agent(address, "snake"), agent(address, "bear")
    boss = commander(address)
    newer = len(base.Reason.keys())
    waits = {"pending": base.PENDING_WAITING_TO_START}
    failed = {"failed": base.FAILED_EXEC_FAILED}
    gone = {"stopping": base.STOPPING_REQUESTED_AT_RUNTIME}
    # Of an agent without reasons, or with one that is newer than the server, the text counts; else the reason does.
    for kind, info, reason, expected in [
        (waits, "inactive: no camera", None, base.REASON_INACTIVE),
        (waits, "no camera here", base.REASON_INACTIVE, base.REASON_INACTIVE),
        (waits, "inactive: no camera", base.REASON_NONE, base.REASON_NONE),
        (waits, "precondition: no key", newer, base.REASON_PRECONDITION),
        (waits, "of another implementation", None, base.REASON_BLOCKED),
        (waits, "", None, None),
        (gone, "gone: /run/lock exists", None, base.REASON_GONE),
        (gone, "/run/lock exists", base.REASON_GONE, base.REASON_GONE),
        (failed, "No more restarts: Exit code: '1'", None, base.REASON_NO_MORE_RESTARTS),
        (failed, "Exit code: '1'", None, None),
    ]:
        state = state_of("first", "snake", FIRST, info=info, **kind)
        if reason is not None:
            state.executionState.reason = reason
        snake.send(updateWorkloadState=api.UpdateWorkloadState(workloadStates=[state]))

        def arrived(state):
            same = all(getattr(state, name) == number for name, number in kind.items())
            found = state.reason if state.HasField("reason") else None
            return same and state.additionalInfo == info and found == expected

        def read():
            got = boss.complete_state("workloadStates.snake").workloadStates.agentStateMap["snake"]
            return arrived(got.wlNameStateMap["first"].idStateMap[instance("first", "snake", FIRST).id])

        wait(read)
        # Others are sent the reason as well, whoever has found it out.
        while True:
            states = bear.skip_to("updateWorkloadState").workloadStates
            if any(arrived(state.executionState) for state in states):
                break


def complete_state_with_and_without_masks(address):
    boss = commander(address)
    state = boss.complete_state()
    assert sorted(state.desiredState.workloads.workloads) == ["first", "free", "other"]
    assert state.desiredState.apiVersion == "v1" and state.effectiveState.apiVersion == "v1"
    assert sorted(state.effectiveState.workloads.workloads) == ["first", "free", "other"]
    assert state.HasField("agents") and not state.agents.agents
    first = state.desiredState.workloads.workloads["first"]
    for part in ("dependencies", "tags", "configs", "files", "controlInterfaceAccess"):
        assert first.HasField(part), f"without mask every part is there: {part}"

    state = boss.complete_state("desiredState.workloads.*.agent", "desiredState.workloads.first.tags.owner")
    assert state.desiredState.apiVersion == "v1"
    assert not state.HasField("workloadStates") and not state.HasField("agents")
    workloads = state.desiredState.workloads.workloads
    assert {name: one.agent for name, one in workloads.items()} == {"first": "snake", "free": "", "other": "bear"}
    assert not any(one.HasField("runtime") for one in workloads.values())
    assert dict(workloads["first"].tags.tags) == {"owner": "python"}

    state = boss.complete_state("nosuch.mask")
    assert state == base.CompleteState(), state
    state = boss.complete_state("workloadStates.*.*.*.state").workloadStates.agentStateMap
    other = state["bear"].wlNameStateMap["other"].idStateMap[instance("other", "bear", OTHER).id]
    assert other.HasField("pending") and not other.HasField("additionalInfo"), other


def refused_updates_say_why_and_change_nothing(address):
    boss = commander(address)
    before = boss.complete_state("desiredState")

    def refused(masks, **state):
        answer = boss.update(masks, **state)
        assert answer.HasField("error"), answer
        return answer.error.message

    text = refused(["desiredState.workloads.nosuch.agent"])
    assert text == "Update rejected: 'Could not find field desiredState.workloads.nosuch.agent'", text
    text = refused(["desiredState"], desiredState=base.State(apiVersion="v7"))
    assert text == "Unsupported API version. Received 'v7', expected 'v1'", text
    cycle = desired(a=workload("snake", "x", dependencies={"b": base.ADD_COND_RUNNING}),
                    b=workload("snake", "x", dependencies={"a": base.ADD_COND_FAILED}))
    text = refused(["desiredState.workloads.a", "desiredState.workloads.b"], desiredState=cycle)
    assert text == "Update rejected: 'workload dependency 'a' is part of a cycle. It is: a -> b -> a'", text
    text = refused(["desiredState.workloads.a_b-c", "desiredState.workloads.bad"],
                   desiredState=desired(bad=workload("sna ke", "x")))
    assert text.startswith("Update rejected: 'Resulting State is invalid, reason: 'Unsupported agent name 'sna ke'."), text

    # Broken requests are answered as well, and the connection stays.
    answer = boss.request(updateStateRequest=base.UpdateStateRequest())
    assert answer.error.message == "The UpdateStateRequest does not contain a new state", answer
    answer = boss.request()
    assert answer.error.message == "The Request does not contain any content", answer
    boss.send()
    boss.send(request=base.Request())
    assert boss.complete_state("desiredState") == before

    # No mask replaces everything; effectiveState and workloadStates of the request are not looked at.
    answer = boss.update([], desiredState=desired(only=workload("snake", "image: only")))
    assert len(answer.UpdateStateSuccess.deletedWorkloads) == 3, answer
    assert sorted(boss.complete_state().desiredState.workloads.workloads) == ["only"]


def wrong_hellos_end_in_the_documented_status(address):
    def status(stream):
        error = stream.end()
        assert error is not None, "the stream ended with OK"
        return error.code(), error.details()

    for connect in (lambda version: agent(address, "snake", version), lambda version: commander(address, version),
                    lambda version: cli(address, version)):
        for version in ("2.0.0", "0.9.9", "", "1", "1.0", "v1.0.0"):
            expected = f"Unsupported protocol version '{version}'. Currently supported '1'"
            assert status(connect(version)) == (grpc.StatusCode.FAILED_PRECONDITION, expected)

    agents = lambda c: services.AgentConnectionStub(c).ConnectAgent
    commanders = lambda c: services.CommandConnectionStub(c).ConnectCommand
    tools = lambda c: services.CliConnectionStub(c).ConnectCli
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    wrong = api.ToServer(goodbye=api.Goodbye())
    assert status(Stream(address, agents, wrong)) == (invalid, "No AgentHello received.")
    assert status(Stream(address, commanders, wrong)) == (invalid, "No CommanderHello received.")
    assert status(Stream(address, tools, wrong)) == (invalid, "No CommanderHello received.")
    for method in (agents, commanders, tools):
        assert status(Stream(address, method, api.ToServer())) == (invalid, "Empty")
        empty = Stream(address, method, None)
        empty.half_close()
        assert status(empty) == (invalid, "Empty")

    for version in ("1.0.0", "1.99.0", "1.0.0-rc1"):
        assert commander(address, version).complete_state("desiredState").desiredState.apiVersion == "v1"
        agent(address, "snake", version).skip_to("serverHello")


def every_end_of_an_agent_stream_is_noticed(address):
    boss = commander(address)

    def leave_by_goodbye(stream):
        stream.send(goodbye=api.Goodbye())

    for leave in (Stream.half_close, leave_by_goodbye, lambda stream: stream.call.cancel(),
                  lambda stream: stream.channel.close()):
        snake = agent(address, "snake")
        snake.skip_to("serverHello")
        snake.send(updateWorkloadState=api.UpdateWorkloadState(
            workloadStates=[state_of("first", "snake", FIRST, running=base.RUNNING_OK)]))
        wait(lambda: first_state(boss).HasField("running"))
        leave(snake)
        wait(lambda: first_state(boss).HasField("agentDisconnected"))
        assert not boss.complete_state("agents").agents.agents

    # A second connection of the same name wins; the end of the first one changes nothing then.
    old, new = agent(address, "snake"), None
    old.skip_to("serverHello")
    new = agent(address, "snake")
    new.skip_to("serverHello")
    assert old.end() is None, "the older stream is ended with OK"
    new.send(updateWorkloadState=api.UpdateWorkloadState(
        workloadStates=[state_of("first", "snake", FIRST, running=base.RUNNING_OK)]))
    wait(lambda: first_state(boss).HasField("running"))
    assert list(boss.complete_state("agents").agents.agents) == ["snake"]


def first_state(boss):
    states = boss.complete_state("workloadStates").workloadStates.agentStateMap["snake"]
    return states.wlNameStateMap["first"].idStateMap[instance("first", "snake", FIRST).id]


def wait(condition):
    """Polls the server until the condition holds."""
    import time
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def load_of_an_agent_is_part_of_the_state(address):
    snake, boss = agent(address, "snake"), commander(address)
    snake.skip_to("serverHello")
    assert not boss.complete_state().agents.agents["snake"].HasField("status")
    snake.send(AgentLoadStatus=api.AgentLoadStatus(
        agent_name="snake", cpu_usage=base.CpuUsage(cpu_usage=42), free_memory=base.FreeMemory(free_memory=1 << 40)))
    wait(lambda: boss.complete_state("agents").agents.agents["snake"].status.cpu_usage.cpu_usage == 42)
    assert boss.complete_state("agents").agents.agents["snake"].status.free_memory.free_memory == 1 << 40
    # An agent speaks for itself only.
    snake.send(AgentLoadStatus=api.AgentLoadStatus(agent_name="bear", cpu_usage=base.CpuUsage(cpu_usage=1)))
    snake.send(updateWorkloadState=api.UpdateWorkloadState(
        workloadStates=[state_of("other", "bear", OTHER, running=base.RUNNING_OK),
                        state_of("first", "snake", FIRST, running=base.RUNNING_OK)]))
    wait(lambda: first_state(boss).HasField("running"))
    other = boss.complete_state("workloadStates.bear").workloadStates.agentStateMap["bear"].wlNameStateMap["other"]
    assert other.idStateMap[instance("other", "bear", OTHER).id].HasField("pending")
    assert list(boss.complete_state("agents").agents.agents) == ["snake"]


def commander_runs_a_workload_on_a_real_agent(address):
    """`agent_A` is a real ank-agent with the fake engine."""
    tool = cli(address)
    wait(lambda: "agent_A" in tool.complete_state("agents").agents.agents)
    answer = tool.update(["desiredState.workloads.w1"], desiredState=desired(w1=workload("agent_A", "image: run")))
    assert len(answer.UpdateStateSuccess.addedWorkloads) == 1, answer
    assert follow(tool, "w1", "running") == ["pending 2 Triggered at runtime.", "running 0 "]
    answer = tool.update(["desiredState.workloads.w1"])
    assert len(answer.UpdateStateSuccess.deletedWorkloads) == 1, answer
    assert follow(tool, "w1", "removed") == ["stopping 2 ", "removed 0 "]


def follow(stream, name, last):
    """The states of a workload as broadcast, up to the first of kind `last`."""
    seen = []
    while not seen or not seen[-1].startswith(last):
        for state in stream.skip_to("updateWorkloadState").workloadStates:
            if state.instanceName.workloadName == name:
                execution = state.executionState
                kind = execution.WhichOneof("ExecutionStateEnum")
                seen.append(f"{kind} {getattr(execution, kind)} {execution.additionalInfo}")
    return seen


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
