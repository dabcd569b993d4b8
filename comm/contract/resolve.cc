#include "comm/contract/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "proto/os/descriptor.h"
#include "proto/os/interfaces.h"
#include "proto/os/socket_address.h"

namespace ivy::comm {
namespace {

// Addresses kept for documentation (RFC 5737, RFC 3849): nothing is sent to them; the routing table
// is asked which of our addresses would be the source.
constexpr const char* kSomewhere[] = {"203.0.113.1", "2001:db8::1"};
constexpr std::uint16_t kAnyPort = 9;

std::string text_of(const sockaddr* address) {
  char host[NI_MAXHOST] = {};
  const socklen_t length =
      address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

std::string source_towards(const char* somewhere) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(kAnyPort);
  if (getaddrinfo(somewhere, port.c_str(), &hints, &found) != 0) return "";
  std::string own;
  const Descriptor socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage name = {};
  socklen_t length = sizeof name;
  if (socket && connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0) {
    own = text_of(reinterpret_cast<sockaddr*>(&name));
  }
  freeaddrinfo(found);
  return own;
}

}  // namespace

Result<std::vector<std::string>> resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) return Error{Code::kUnavailable, host + ": " + gai_strerror(failed)};
  std::vector<std::string> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const std::string text = text_of(each->ai_addr);
    const bool is_new = std::find(addresses.begin(), addresses.end(), text) == addresses.end();
    if (!text.empty() && is_new) addresses.push_back(text);
  }
  freeaddrinfo(found);
  return addresses;
}

bool is_numeric(const std::string& host) {
  in6_addr ignored = {};
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &ignored) == 1;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  const auto add = [&](const std::string& address) {
    const bool is_new = std::find(addresses.begin(), addresses.end(), address) == addresses.end();
    if (!address.empty() && !is_loopback(address) && is_new) addresses.push_back(address);
  };
  for (const char* const somewhere : kSomewhere) add(source_towards(somewhere));
  for (const InterfaceAddress& own : interface_addresses()) add(own.address);
  return addresses;
}

std::uint16_t port_of(int socket) {
  sockaddr_storage name = {};
  socklen_t length = sizeof name;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&name), &length) != 0) return 0;
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

}  // namespace ivy::comm
