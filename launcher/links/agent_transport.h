// SPDX-License-Identifier: Apache-2.0
// Lets other code make links to agents without including gRPC. Thread: the loop's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "launcher/links/host_link.h"
#include "launcher/options/hosts.h"

namespace ivy {

class TransportContext;

enum class AgentRoute {
  kDirect,   // The agent of another host, over TCP and TLS.
  kOwnHost,  // This host's agent, over its Unix socket.
};

// How long an agent may take to answer: on the first dial of `auto`, where SSH is tried next; on a
// redial, which is repeated immediately; and in all other cases.
inline constexpr std::chrono::milliseconds kAgentAnswerAuto{1'500};
inline constexpr std::chrono::milliseconds kAgentAnswerRedial{3'000};
inline constexpr std::chrono::milliseconds kAgentAnswer{10'000};

// Makes a link to a host through an agent; the link is not open yet. answer: how long the agent at
// one address may take to answer.
using MakeAgentLink = std::function<std::unique_ptr<HostLink>(
    const std::shared_ptr<TransportContext>& context, const Host& host, AgentRoute route,
    std::chrono::milliseconds answer, HostLinkEvents& owner)>;

MakeAgentLink agent_link_maker();

}  // namespace ivy
