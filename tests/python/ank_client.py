"""One stream to ank-server, spoken with grpcio and stubs generated from our proto/ folder.

Owns: a channel, a call and the thread that receives. Used by interop.py.
"""

import hashlib
import queue
import threading

import grpc

import ank_base_pb2 as base
import grpc_api_pb2 as api
import grpc_api_pb2_grpc as services

# Longest wait for a message that has to come.
LIMIT = 180
VERSION = "1.1.0"


class Stream:
    """A connection to one of the three services. Received messages wait in order until they are asked for."""

    def __init__(self, address, method, hello):
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 * 1024 * 1024)]
        self.channel = grpc.insecure_channel(address, options=options)
        self.outgoing = queue.Queue()
        self.incoming = queue.Queue()
        self.requests = 0
        if hello is not None:
            self.outgoing.put(hello)
        self.call = method(self.channel)(iter(self.outgoing.get, None))
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self):
        try:
            for message in self.call:
                self.incoming.put(message)
            self.incoming.put(None)
        except grpc.RpcError as error:
            self.incoming.put(error)

    def send(self, **fields):
        self.outgoing.put(api.ToServer(**fields))

    def half_close(self):
        self.outgoing.put(None)

    def close(self):
        self.half_close()
        self.call.cancel()
        self.channel.close()

    def next(self):
        """The next message and its kind. The end of the stream and an error status are failures."""
        message = self.incoming.get(timeout=LIMIT)
        if message is None or isinstance(message, grpc.RpcError):
            raise AssertionError(f"the stream ended: {message}")
        return message.WhichOneof("FromServerEnum"), message

    def expect(self, kind):
        """The next message, which has to be of this kind."""
        got, message = self.next()
        assert got == kind, f"expected {kind}, got {message}"
        return getattr(message, kind)

    def skip_to(self, kind):
        """The next message of this kind; others are dropped."""
        while True:
            got, message = self.next()
            if got == kind:
                return getattr(message, kind)

    def end(self):
        """Waits for the end of the stream; None for status OK, otherwise the error."""
        while True:
            message = self.incoming.get(timeout=LIMIT)
            if message is None or isinstance(message, grpc.RpcError):
                return message

    def request(self, **content):
        """Sends a request and returns the answer with the same id."""
        self.requests += 1
        identity = f"python-{self.requests}@x"
        self.send(request=base.Request(requestId=identity, **content))
        while True:
            response = self.skip_to("response")
            if response.requestId == identity:
                return response

    def complete_state(self, *masks):
        response = self.request(completeStateRequest=base.CompleteStateRequest(fieldMask=masks))
        return response.completeStateResponse.completeState

    def update(self, masks, **state):
        new_state = base.CompleteState(**state)
        return self.request(updateStateRequest=base.UpdateStateRequest(newState=new_state, updateMask=masks))


def agent(address, name, version=VERSION, **tags):
    hello = api.AgentHello(agentName=name, protocolVersion=version, tags=base.Tags(tags=tags))
    return Stream(address, lambda c: services.AgentConnectionStub(c).ConnectAgent, api.ToServer(agentHello=hello))


def commander(address, version=VERSION):
    hello = api.ToServer(commanderHello=api.CommanderHello(protocolVersion=version))
    return Stream(address, lambda c: services.CommandConnectionStub(c).ConnectCommand, hello)


def cli(address, version=VERSION):
    hello = api.ToServer(commanderHello=api.CommanderHello(protocolVersion=version))
    return Stream(address, lambda c: services.CliConnectionStub(c).ConnectCli, hello)


def workload_id(runtime_config):
    return hashlib.sha256(runtime_config.encode()).hexdigest()


def instance(name, agent_name, runtime_config):
    return base.WorkloadInstanceName(workloadName=name, agentName=agent_name, id=workload_id(runtime_config))


def state_of(name, agent_name, runtime_config, **state):
    info = state.pop("info", "")
    execution = base.ExecutionState(additionalInfo=info, **state)
    return base.WorkloadState(instanceName=instance(name, agent_name, runtime_config), executionState=execution)


def desired(**workloads):
    return base.State(apiVersion="v1", workloads=base.WorkloadMap(workloads=workloads))


def workload(agent_name, config, runtime="podman", dependencies=None):
    result = base.Workload(agent=agent_name, runtime=runtime, runtimeConfig=config)
    if dependencies:
        result.dependencies.CopyFrom(base.Dependencies(dependencies=dependencies))
    return result
