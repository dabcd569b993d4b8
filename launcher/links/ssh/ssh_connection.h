// One way through libssh to one host: a table of steps, each repeated when the socket is ready.
// Thread: the loop's. Lifetime: held by its pending operations; after close() nothing is called.
#pragma once

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/links/carrier_context.h"
#include "launcher/links/host_link.h"
#include "launcher/links/remote_entry.h"
#include "launcher/links/ssh/host_key_question.h"
#include "launcher/links/ssh/ssh_session.h"
#include "launcher/links/tcp_dial.h"
#include "launcher/options/hosts.h"

namespace ivy {

class SshConnection : public std::enable_shared_from_this<SshConnection> {
 public:
  struct Handlers {
    HostLink::Handlers link;
    // libssh cannot do it; the OpenSSH client may. Last call of all.
    std::function<void(const std::string& because)> give_up;
  };
  enum class Retry { kAllowed, kForbidden };

  SshConnection(std::shared_ptr<CarrierContext> context, Host host, SshTarget target,
                Handlers handlers, Retry retry);
  void open(const OpenRequest& request, NodeUpload& upload);
  void write(std::string_view bytes);
  void close();

  // Time from the TCP connection to the running command: sshd's own LoginGraceTime is 120 s, but
  // users do not wait that long.
  static constexpr std::chrono::seconds kHandshakeTimeout{30};
  // An upload that makes no progress for this long is stuck.
  static constexpr std::chrono::seconds kEntryTimeout{60};
  // sshd turns connections away above MaxStartups: a few spread retries get in.
  static constexpr int kMaxTries = 5;
  static constexpr int kMaxRefusedTries = 3;
  static constexpr std::chrono::milliseconds kFirstBackoff{150};
  // After the end of the output: how long the exit status and last words are waited for.
  static constexpr std::chrono::milliseconds kLastWordsTimeout{300};

 private:
  enum class State {
    kWaiting,
    kHandshake,
    kAsking,
    kLogIn,
    kChannel,
    kExecute,
    kEntry,
    kUp,
    kEnding,
    kOver
  };

  void want_place();
  void dial();
  void dialled(const Dialled& dialled);
  void dial_failed(const LinkDown& down);
  bool try_again(const LinkDown& down, int max_tries);
  void drive();
  bool step();
  bool advance(SshStep result, State next);
  void step_failed();
  void check_host_key();
  void ask(const SshHostKey& key);
  void answered(const SshHostKey& key, bool trusted);
  bool move_bytes();
  bool read_stream(SshStream stream);
  void take(std::string_view bytes);
  void enter(std::string_view bytes);
  bool write_some();
  void begin_end();
  void last_words();
  void ended();
  void wait();
  void await_nudge();
  void set_deadline(std::chrono::steady_clock::duration limit, std::function<void()> expired);
  void fail(const LinkDown& down);
  void give_up(const std::string& because);
  std::string where() const;

  static constexpr std::size_t kReadBytes = 64u << 10;
  static constexpr std::size_t kWriteBytes = 32u << 10;
  // Reads in a row before others get their turn.
  static constexpr int kReadsPerTurn = 32;
  static constexpr std::chrono::milliseconds kNudge{50};
  static constexpr std::size_t kErrorKeptBytes = 4096;

  std::shared_ptr<CarrierContext> context_;
  const Host host_;
  const SshTarget target_;
  Handlers handlers_;
  const Retry retry_;
  OpenRequest request_;
  NodeUpload* upload_ = nullptr;
  State state_ = State::kWaiting;
  Slots::Ticket place_;
  Slots::Ticket terminal_;
  std::shared_ptr<TcpDial> dial_;
  std::unique_ptr<SshSession> session_;
  std::shared_ptr<HostKeyQuestion> question_;
  std::optional<RemoteEntry> entry_;
  boost::asio::posix::stream_descriptor socket_;  // A copy of libssh's descriptor, to wait on.
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer nudge_timer_;
  bool waits_nudge_ = false;
  int deadline_serial_ = 0;
  int tries_ = 0;
  bool waits_read_ = false;
  bool waits_write_ = false;
  LinkUp up_;
  std::string outgoing_;
  std::size_t written_ = 0;
  bool owes_drained_ = false;
  std::string error_text_;
  std::unique_ptr<std::array<char, kReadBytes>> buffer_;
};

}  // namespace ivy
