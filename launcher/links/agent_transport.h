// SPDX-License-Identifier: Apache-2.0
// How the transports get a link by a host's agent without including gRPC. Thread: the loop's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "launcher/links/host_link.h"
#include "launcher/options/hosts.h"

namespace ivy {

class TransportContext;

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
    const std::shared_ptr<TransportContext>& context, const Host& host, AgentWay way,
    std::chrono::milliseconds answer, HostLinkEvents& owner)>;

MakeAgentLink agent_link_maker();

}  // namespace ivy
