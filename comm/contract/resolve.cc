// SPDX-License-Identifier: Apache-2.0
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

// Addresses reserved for documentation (RFC 5737, RFC 3849). Nothing is sent to them; they are used
// to query the routing table for the source address that a packet to the outside would have.
constexpr const char* kSomewhere[] = {"203.0.113.1", "2001:db8::1"};
constexpr std::uint16_t kAnyPort = 9;

std::string text_of(const sockaddr* address) {
  char host[NI_MAXHOST] = {};
  const socklen_t length =
      address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
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

Result<std::string> own_address_towards(const std::string& host) {
  const std::vector<std::string> addresses = IVY_TRY(resolve(host));
  SocketAddress target = parse_address(addresses.empty() ? host : addresses[0], kAnyPort);
  // Connecting a datagram socket sends nothing; it only queries the routing table.
  const Descriptor socket(::socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || connect(socket.get(), target.get(), target.size) != 0) {
    return errno_error(Code::kUnavailable, "find the route to " + host, errno);
  }
  return text_of(own_address(socket.get()).get());
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  const auto add = [&](const std::string& address) {
    const bool is_new = std::find(addresses.begin(), addresses.end(), address) == addresses.end();
    if (!address.empty() && !is_loopback(address) && is_new) addresses.push_back(address);
  };
  for (const char* const somewhere : kSomewhere) {
    if (const Result<std::string> own = own_address_towards(somewhere); own.ok()) add(*own);
  }
  for (const InterfaceAddress& own : interface_addresses()) add(own.address);
  return addresses;
}

}  // namespace ivy::comm
