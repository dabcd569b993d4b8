// SPDX-License-Identifier: Apache-2.0
// A separate store for tests in other languages. Prints "NATIVE_ADDRESS TORCH_ADDRESS" and serves
// until its standard input is closed. A line "generation N" on standard input starts that
// generation.
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdlib>
#include <iostream>
#include <string>

#include "proto/os/listening_socket.h"
#include "rendezvous/server/server.h"

namespace ivy::store {
namespace {

class Input {
 public:
  Input(boost::asio::io_context& loop, Server& server)
      : loop_(loop), server_(server), input_(loop, STDIN_FILENO) {
    wait();
  }

 private:
  void wait() {
    input_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code&) { read_some(); });
  }
  void read_some() {
    std::array<char, 256> buffer;
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count <= 0) {
      server_.stop();
      return loop_.stop();
    }
    line_.append(buffer.data(), static_cast<std::size_t>(count));
    const std::size_t end = line_.find('\n');
    const std::string verb = "generation ";
    if (end != std::string::npos && line_.starts_with(verb)) {
      server_.begin_generation(static_cast<std::uint32_t>(std::atoi(line_.c_str() + verb.size())));
      std::cout << "begun" << std::endl;
    }
    if (end != std::string::npos) line_.erase(0, end + 1);
    wait();
  }

  boost::asio::io_context& loop_;
  Server& server_;
  boost::asio::posix::stream_descriptor input_;
  std::string line_;
};

int serve() {
  boost::asio::io_context loop(1);
  ServerOptions options;
  options.job_id = std::string(32, '0');
  options.token = std::string(32, 't');
  options.log = [](const std::string& line) { std::cerr << line << std::endl; };
  Server server(loop, options);
  const Result<int> native = listen_tcp("127.0.0.1", 0);
  const Result<int> torch = listen_tcp("::", 0);  // IPv4 and IPv6, like torch's own store.
  if (!native.ok() || !torch.ok()) return 1;
  std::cout << address_of(*native) << " " << address_of(*torch) << std::endl;
  server.listen(*native, Server::Dialect::kNative);
  server.listen(*torch, Server::Dialect::kTorch);
  const Input input(loop, server);
  loop.run();
  return 0;
}

}  // namespace
}  // namespace ivy::store

int main() { return ivy::store::serve(); }
