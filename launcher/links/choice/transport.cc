// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/choice/transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "launcher/links/choice/auto_link.h"
#include "launcher/links/exec/exec_link.h"
#include "launcher/links/local_link.h"
#include "launcher/links/srun/dial_back_link.h"
#include "launcher/links/srun/srun_step.h"
#include "launcher/links/ssh/ssh_link.h"
#include "launcher/links/this_host.h"
#include "launcher/links/transport_context.h"
#include "proto/contract/log.h"

namespace ivy {
namespace {

std::unique_ptr<HostLink> make_ssh_link(const std::shared_ptr<TransportContext>& context, Host host,
                                        HostLinkEvents& owner, int attempt) {
  if (host.port == 0) host.port = context->options().ssh_port;
  return std::make_unique<SshLink>(context, host, owner, attempt);
}

// answer: how long the agent may take to answer on the first dial.
std::unique_ptr<HostLink> make_agent_link(const std::shared_ptr<TransportContext>& context,
                                          const Host& host, HostLinkEvents& owner, int attempt,
                                          std::chrono::milliseconds answer) {
  if (attempt > 0) answer = kAgentAnswerRedial;
  return context->make_agent_link()(context, host, AgentRoute::kDirect, answer, owner);
}

// Returns why `auto` uses only SSH for this host; empty: its agent is tried first.
std::string only_ssh_because(TransportContext& context, const Host& host) {
  if (host.port != 0) return "an SSH port is set for it";
  if (context.options().no_agents) return "the policy of this host forbids agents";
  const Result<std::optional<AgentIdentity>>& identity = context.agent_identity();
  if (!identity.ok()) {
    context.note("agent identity",
                 "note: ssh is used: " + identity.error().message +
                     (identity.error().fix.empty() ? "" : " (" + identity.error().fix + ")"));
    return identity.error().message;
  }
  if (!*identity) return "no agent.toml";
  if (!host.user.empty() && host.user != (*identity)->self.name) {
    return "agents run workers as " + (*identity)->self.name + ", not as " + host.user;
  }
  return {};
}

std::vector<Transport> auto_transports(TransportContext& context, const Host& host) {
  if (const std::optional<Transport> known = context.transport_of(host)) return {*known};
  const std::string because = only_ssh_because(context, host);
  if (because.empty()) return {Transport::kAgent, Transport::kSsh};
  log::debug(host.name + ": ssh is used: " + because);
  return {Transport::kSsh};
}

class AgentOrSshLink final : public AutoLink {
 public:
  AgentOrSshLink(const std::shared_ptr<TransportContext>& context, const Host& host,
                 HostLinkEvents& owner, int attempt)
      : AutoLink(context, host, auto_transports(*context, host), owner), attempt_(attempt) {}

 private:
  std::unique_ptr<HostLink> make_link_by(Transport transport) override {
    if (transport == Transport::kSsh) return make_ssh_link(context_, host_, *this, attempt_);
    // SSH is next, unless the host was reached through its agent before.
    const bool has_ssh = transports_.size() > 1;
    return make_agent_link(context_, host_, *this, attempt_,
                           has_ssh ? kAgentAnswerAuto : kAgentAnswerRedial);
  }

  const int attempt_;
};

}  // namespace

bool uses_srun(const Options& options, const Host& host) {
  return !host.fake && !options.node_rank &&
         (options.transport == TransportChoice::kSlurm ||
          (options.transport == TransportChoice::kAuto && options.allocation && !options.no_slurm));
}

bool uses_local_transport(const Options& options, const Host& host) {
  // This machine too is reached through the step: its workers belong to the step and end with it.
  if (uses_srun(options, host)) return false;
  if (options.node_rank) return !host.joins;
  return host.fake || options.transport == TransportChoice::kLocal ||
         (options.transport == TransportChoice::kAuto && is_this_host(host));
}

bool may_have_agent(const Options& options, const Host& host) {
  if (host.joins || uses_srun(options, host)) return false;
  return options.transport == TransportChoice::kAgent ||
         (options.transport == TransportChoice::kAuto && host.port == 0 && !options.no_agents);
}

Result<void> keep_to_policy(Options& options) {
  if (!options.no_ssh || options.transport != TransportChoice::kAuto) return {};
  const auto other =
      std::find_if(options.hosts.begin(), options.hosts.end(), [&](const Host& host) {
        return !host.joins && !uses_local_transport(options, host) && !uses_srun(options, host);
      });
  if (other == options.hosts.end()) return {};
  if (options.no_agents)
    return Error{Code::kPermissionDenied,
                 "the policy of this host (/etc/ivyrun/policy.toml) forbids the transports to " +
                     other->name + ": ssh and agents",
                 "ask the administrator of this host"};
  options.transport = TransportChoice::kAgent;
  return {};
}

void finish_transports(const std::shared_ptr<TransportContext>& context,
                       std::function<void()> done) {
  if (!context) return done();
  context->part<SrunStep>()->finish(std::move(done));
}

std::unique_ptr<HostLink> make_link(const std::shared_ptr<TransportContext>& context,
                                    const Host& host, HostLinkEvents& owner, int attempt) {
  if (uses_local_transport(context->options(), host)) {
    return std::make_unique<LocalLink>(context->loop(), context->node(), owner);
  }
  if (host.joins) {
    return std::make_unique<DialBackLink>(context->loop(), context->joined_hosts(), host.name,
                                          owner);
  }
  if (uses_srun(context->options(), host)) {
    return std::make_unique<DialBackLink>(context->loop(), context->part<SrunStep>(), host.name,
                                          owner);
  }
  switch (context->options().transport) {
    case TransportChoice::kSsh:
      return make_ssh_link(context, host, owner, attempt);
    case TransportChoice::kExec:
      return std::make_unique<ExecLink>(context, host, owner);
    case TransportChoice::kAgent:
      if (is_this_host(host)) {
        return context->make_agent_link()(context, host, AgentRoute::kOwnHost, kAgentAnswer, owner);
      }
      return make_agent_link(context, host, owner, attempt, kAgentAnswer);
    case TransportChoice::kAuto:
    case TransportChoice::kLocal:
    case TransportChoice::kSlurm:
      break;
  }
  return std::make_unique<AgentOrSshLink>(context, host, owner, attempt);
}

}  // namespace ivy
