#include "launcher/links/carrier.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <climits>

#include "launcher/links/carrier_context.h"
#include "launcher/links/local_link.h"
#include "launcher/links/ssh_client_link.h"
#include "launcher/links/ssh_link.h"
#include "launcher/links/this_host.h"
#include "proto/log.h"

namespace ivy {
namespace {

bool asks_for_another_user(const Host& host) {
  if (host.user.empty()) return false;
  const passwd* own = getpwuid(geteuid());
  return own == nullptr || host.user != own->pw_name;
}

SshTarget target_of(CarrierContext& context, const Host& host) {
  const SshConfigFiles& config = context.ssh_config();
  SshTarget target = ssh_target({host.name, host.user, host.port}, config.texts, config.user);
  if (!target.client_because.empty()) return target;
  if (!context.options().ssh_command.empty()) {
    target.client_because = "--ssh-command";
  } else if (!context.options().ssh_args.empty()) {
    target.client_because = "--ssh-args";
  } else if (context.prefers_client(host)) {
    target.client_because = "what libssh could not do before";
  } else if (context.known_hosts_needs_client(target.known_hosts)) {
    target.client_because = "@ lines in " + target.known_hosts;
  }
  return target;
}

}  // namespace

bool is_this_host(const Host& host) {
  if (host.fake) return true;
  // A written port is a door to some sshd: a container or a tunnel that merely has our address.
  if (host.port != 0 || asks_for_another_user(host)) return false;
  return is_own_address(host.name) || is_own_name(host.name);
}

std::shared_ptr<CarrierContext> make_carrier_context(boost::asio::io_context& loop,
                                                     const Options& options,
                                                     const std::string& node_binary) {
  return std::make_shared<CarrierContext>(loop, options, node_binary);
}

std::unique_ptr<HostLink> make_link(const std::shared_ptr<CarrierContext>& context,
                                    const Host& host, const HostLink::Handlers& handlers,
                                    int attempt) {
  const TransportChoice choice = context->options().transport;
  const bool is_local = host.fake || choice == TransportChoice::kLocal ||
                        (choice == TransportChoice::kAuto && is_this_host(host));
  if (is_local) {
    return std::make_unique<LocalLink>(context->loop(), context->node_binary(), handlers);
  }
  Host door = host;
  if (door.port == 0) door.port = context->options().ssh_port;
  const SshTarget target = target_of(*context, door);
  if (!target.client_because.empty()) {
    log::debug(host.name + ": the OpenSSH client is used because of " + target.client_because);
    return std::make_unique<SshClientLink>(context, door, target, handlers);
  }
  return std::make_unique<SshLink>(context, door, target, handlers, attempt);
}

std::string program_directory() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return ".";
  const std::string program(path.data(), static_cast<std::size_t>(length));
  return program.substr(0, program.rfind('/'));
}

}  // namespace ivy
