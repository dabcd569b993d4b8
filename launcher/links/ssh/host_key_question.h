// SPDX-License-Identifier: Apache-2.0
// Asks the user at the terminal whether an unknown host key is the right one, in OpenSSH's words.
// Thread: the loop's. Lifetime: held by its pending operations; after cancel() nothing is called.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>

namespace ivy {

class HostKeyQuestion : public std::enable_shared_from_this<HostKeyQuestion> {
 public:
  // The host and the key in question.
  struct Subject {
    std::string host;
    std::string address;
    std::string type;         // The key's type, such as "ED25519".
    std::string fingerprint;  // In OpenSSH's form: "SHA256:...".
  };

  // True if a user can answer: standard input and error are terminals, and this process is in the
  // foreground.
  static bool can_prompt();

  explicit HostKeyQuestion(boost::asio::io_context& loop) : terminal_(loop) {}
  // Asks, and calls back once from the loop. The fingerprint itself counts as a yes.
  void prompt(const Subject& subject, std::function<void(bool trusted)> answered);
  void cancel();

 private:
  void read();
  void answer(const std::string& line);
  void print(const std::string& text);

  boost::asio::posix::stream_descriptor terminal_;
  std::string fingerprint_;
  std::function<void(bool)> answered_;
  std::string line_;
  std::array<char, 256> buffer_{};
};

}  // namespace ivy
