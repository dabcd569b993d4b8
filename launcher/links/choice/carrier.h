// Which carrier reaches which host.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/links/agent_carrier.h"
#include "launcher/links/host_link.h"
#include "launcher/links/node_program.h"
#include "launcher/options/hosts.h"
#include "launcher/options/options.h"
#include "proto/contract/env.h"

namespace ivy {

// Everything that links of one job share. Loop thread only; outlives every link.
class CarrierContext;
class DialBackHosts;

// True if its supervisor is started by a srun step and dials back: --transport slurm, or `auto` on
// the hosts of an allocation.
bool is_carried_by_slurm(const Options& options, const Host& host);

// Where the host's policy forbids ssh, `auto` becomes agents; PermissionDenied names a host that
// could not be reached by any way then. The hosts have to be known.
Result<void> keep_to_policy(Options& options);

// True if its supervisor is a child of ours, over a socket pair: that carrier cannot be lost.
bool is_carried_locally(const Options& options, const Host& host);

// True if an agent may be the carrier of any of the hosts, judged without reading certificates.
// Reads agent.toml. A wrong agent.toml counts as absent: both programs say what is wrong with it.
bool may_use_agents(const Options& options, const Environment& environment);

// node: ivy-node of this build (found beside ivyrun). ask_user: may prompt on the
// terminal (unknown host key). make_agent_link: agent_link_maker(); without it no link to an agent
// can be made, `auto` uses SSH with a note, and `--transport agent` is a bug of the caller.
std::shared_ptr<CarrierContext> make_carrier_context(boost::asio::io_context& loop,
                                                     const Options& options, NodeProgram node,
                                                     MakeAgentLink make_agent_link = {});

// Sets where lines for the user go ("note: ...", "warning: ...", no newline). Without a handler
// they are debug lines.
void set_note_handler(const std::shared_ptr<CarrierContext>& context,
                      std::function<void(const RemoteText&)> handler);

// torchrun mode: where the links to hosts that join wait for them.
void set_joined_hosts(const std::shared_ptr<CarrierContext>& context,
                      std::shared_ptr<DialBackHosts> hosts);

// Slurm has signalled its step on some host: the signal, and whether every process of the step has
// it already. Several hosts report the same one.
void set_scheduler_signal_handler(const std::shared_ptr<CarrierContext>& context,
                                  std::function<void(int signal, bool whole_tree)> handler);

// The job is over: what was started to carry it is ended too, within a few seconds. Calls back
// once, at once where there is nothing of that kind. Null is allowed.
void finish_carriers(const std::shared_ptr<CarrierContext>& context, std::function<void()> done);

// The numeric addresses of a name, at least one; calls back once, from the loop, within 5 s.
void look_up_name(const std::shared_ptr<CarrierContext>& context, const std::string& name,
                  std::function<void(const Result<std::vector<std::string>>&)> found);

// A closed link for this host. `attempt` counts redials (0 first).
std::unique_ptr<HostLink> make_link(const std::shared_ptr<CarrierContext>& context,
                                    const Host& host, const HostLink::Handlers& handlers,
                                    int attempt);

}  // namespace ivy
