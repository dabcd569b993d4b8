// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_link.h"
#include "launcher/links/agent_transport.h"

namespace ivy {

MakeAgentLink agent_link_maker() {
  return [](const std::shared_ptr<TransportContext>& context, const Host& host, AgentRoute route,
            std::chrono::milliseconds answer, HostLinkEvents& owner) {
    return std::make_unique<AgentLink>(context, host, route, answer, owner);
  };
}

}  // namespace ivy
