// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_double/ras_double.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <thread>

namespace nccl_double {
namespace {

int listen_at(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (colon == std::string::npos ||
      inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1)
    return -1;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(text.c_str() + colon + 1)));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 64) == 0)
    return fd;
  close(fd);
  return -1;
}

void reply(int fd, const std::string& text) {
  static_cast<void>(!write(fd, text.data(), text.size()));
}

// Returns false after the answer was sent.
bool take_line(int fd, const std::string& line, const std::function<std::string()>& say) {
  const auto begins = [&](const char* with) {
    return strncasecmp(line.c_str(), with, std::string(with).size()) == 0;
  };
  if (begins("client protocol ")) {
    reply(fd, "SERVER PROTOCOL 2\n");
  } else if (begins("timeout ")) {
    reply(fd, "OK\n");
  } else if (begins("verbose status")) {
    reply(fd,
          "NCCL version 2.30.7 compiled with CUDA 13.0\n\nJob summary\n===========\n\n" + say());
    return false;
  } else {
    reply(fd, "ERROR: Unknown command " + line + "\n");
  }
  return true;
}

void answer(int fd, const std::function<std::string()>& say) {
  std::string line;
  char c = 0;
  while (read(fd, &c, 1) == 1) {
    if (c != '\n') {
      line += c;
    } else if (!take_line(fd, line, say)) {
      break;
    } else {
      line.clear();
    }
  }
  close(fd);
}

}  // namespace

void serve_ras(std::function<std::string()> say) {
  static std::once_flag once;
  const char* const address = std::getenv("NCCL_RAS_ADDR");
  if (address == nullptr) return;
  std::call_once(once, [&] {
    const int listening = listen_at(address);
    if (listening < 0) return;
    std::thread([listening, say = std::move(say)] {
      while (true) {
        const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) answer(fd, say);
      }
    }).detach();
  });
}

}  // namespace nccl_double
