// The interface of the part of the carriers that needs gRPC. gRPC costs every process that holds it
// some 0.1 ms at its start, so it is behind this interface, with two implementations:
// agent_link_maker.cc (library ivy_agent_links) and no_agent_carrier.cc (ivy_no_agent_links). What
// a program links decides which one it has. Thread: the loop's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "launcher/links/host_link.h"
#include "launcher/options/hosts.h"

namespace ivy {

class CarrierContext;

enum class AgentWay {
  kDirect,
  kOwnHost,  // This host's agent, over its Unix socket.
};

// How long an agent may take to answer: on the first dial of `auto`, where SSH waits behind it; on
// a redial, after which the next one follows at once; and else.
inline constexpr std::chrono::milliseconds kAgentAnswerAuto{1'500};
inline constexpr std::chrono::milliseconds kAgentAnswerRedial{3'000};
inline constexpr std::chrono::milliseconds kAgentAnswer{10'000};

// A closed link to a host by an agent. answer: how long an address may take until its agent has
// answered at all.
using MakeAgentLink = std::function<std::unique_ptr<HostLink>(
    const std::shared_ptr<CarrierContext>& context, const Host& host, AgentWay way,
    std::chrono::milliseconds answer, const HostLink::Handlers& handlers)>;

// Empty in a program that is linked without gRPC.
MakeAgentLink agent_link_maker();

}  // namespace ivy
