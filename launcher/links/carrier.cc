#include "launcher/links/carrier.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <climits>

#include "launcher/links/carrier_context.h"
#include "launcher/links/local_link.h"
#include "launcher/links/this_host.h"

namespace ivy {
namespace {

bool asks_for_another_user(const Host& host) {
  if (host.user.empty()) return false;
  const passwd* own = getpwuid(geteuid());
  return own == nullptr || host.user != own->pw_name;
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

std::unique_ptr<HostLink> make_link(const std::shared_ptr<CarrierContext>& context, const Host& host,
                                    const HostLink::Handlers& handlers, int attempt) {
  (void)host;
  (void)attempt;
  return std::make_unique<LocalLink>(context->loop(), context->node_binary(), handlers);
}

std::string program_directory() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return ".";
  const std::string program(path.data(), static_cast<std::size_t>(length));
  return program.substr(0, program.rfind('/'));
}

}  // namespace ivy
