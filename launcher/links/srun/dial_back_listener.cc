// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/srun/dial_back_listener.h"

#include <algorithm>
#include <map>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/listening_socket.h"

namespace ivy {
namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

// Limit of the rejected peers that are reported, because a port scanner may use many addresses.
constexpr std::size_t kMaxReported = 64;

}  // namespace

DialBackListener::DialBackListener(asio::io_context& loop, DialBackListenerEvents& events)
    : loop_(loop), events_(events), timer_(loop) {}

Result<std::shared_ptr<DialBackListener>> DialBackListener::open(
    asio::io_context& loop, const DialBackListenerSettings& settings,
    DialBackListenerEvents& events) {
  std::shared_ptr<DialBackListener> made(new DialBackListener(loop, events));
  const auto& [hosts, join] = settings.keys;
  made->tls_ = IVY_TRY(PskTls::make(PskTls::Side::kServer, hosts.identity, hosts.key));
  made->join_identity_ = join.identity;
  if (!join.key.empty()) made->tls_->add_key(join.identity, join.key);
  for (const std::string& address : settings.addresses) IVY_CHECK(made->listen(address, settings));
  for (std::size_t i = 0; i < made->listeners_.size(); ++i) made->accept(i);
  made->close_expired_half_open();
  return made;
}

Result<void> DialBackListener::listen(const std::string& address,
                                      const DialBackListenerSettings& settings) {
  Result<int> fd = Error{Code::kUnavailable, "no port"};
  // In a range, ports that no job has reserved come first.
  for (const PortReuse reuse : {PortReuse::kNever, PortReuse::kAllowed}) {
    if (settings.port_low == settings.port_high && reuse == PortReuse::kNever) continue;
    for (int port = settings.port_high; port >= settings.port_low && !fd.ok(); --port)
      fd = listen_tcp(address, static_cast<std::uint16_t>(port), reuse);
  }
  if (!fd.ok()) {
    Error error = fd.error().context("listen for " + settings.awaited + " on " + address);
    error.fix = settings.fix;
    return error;
  }
  error_code error;
  const bool is_v6 = address.find(':') != std::string::npos;
  tcp::acceptor& listener = listeners_.emplace_back(loop_);
  listener.assign(is_v6 ? tcp::v6() : tcp::v4(), *fd, error);
  addresses_.push_back({address, listener.local_endpoint(error).port()});
  return {};
}

void DialBackListener::accept(std::size_t listener) {
  listeners_[listener].async_accept(
      [self = shared_from_this(), listener](const error_code& error, tcp::socket socket) {
        if (self->is_closed_ || error == asio::error::operation_aborted) return;
        if (!error) self->enter(std::move(socket));
        if (!error || error == asio::error::connection_aborted) return self->accept(listener);
        // Most likely no descriptor is left. Half-open connections release theirs within this time.
        const auto pause = std::make_shared<asio::steady_timer>(self->loop_, kHalfOpenTime);
        pause->async_wait([self, listener, pause](const error_code&) {
          if (!self->is_closed_) self->accept(listener);
        });
      });
}

void DialBackListener::enter(tcp::socket socket) {
  if (half_open_.size() >= kMaxHalfOpen) {
    const auto evicted = oldest_of_busiest_address();
    report_rejected(evicted->stream->peer_address(),
                    "more than " + std::to_string(kMaxHalfOpen) +
                        " connections have not identified themselves");
    evicted->stream->stop();
    half_open_.erase(evicted);
  }
  const std::uint64_t number = next_number_++;
  HalfOpen& entry = half_open_.emplace_back();
  entry.number = number;
  entry.since_ns = monotonic_ns();
  entry.stream = std::make_shared<DialBackStream>(std::move(socket), *tls_);
  entry.stream->greet([self = shared_from_this(), number](const Result<DialGreeting>& greeting) {
    self->greeted(number, greeting);
  });
}

// Finds the connection to close: a peer that floods the listener loses its own connections, not
// those of the step's hosts.
std::list<DialBackListener::HalfOpen>::iterator DialBackListener::oldest_of_busiest_address() {
  std::map<std::string, std::size_t> counts;
  for (const HalfOpen& entry : half_open_) ++counts[entry.stream->peer_address()];
  const auto busiest =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::find_if(half_open_.begin(), half_open_.end(), [&](const HalfOpen& entry) {
    return entry.stream->peer_address() == busiest->first;
  });
}

void DialBackListener::greeted(std::uint64_t number, const Result<DialGreeting>& greeting) {
  const auto entry = std::find_if(half_open_.begin(), half_open_.end(),
                                  [&](const HalfOpen& one) { return one.number == number; });
  if (is_closed_ || entry == half_open_.end()) return;
  const std::shared_ptr<DialBackStream> stream = entry->stream;
  half_open_.erase(entry);
  if (!greeting.ok()) {
    if (greeting.error().code != Code::kCancelled)
      report_rejected(stream->peer_address(), greeting.error().message);
    return stream->stop();
  }
  if (!may_greet(*greeting, *stream)) {
    report_rejected(stream->peer_address(), "its key does not permit this request");
    return stream->stop();
  }
  if (greeting->kind == DialGreeting::Kind::kJoin)
    return events_.node_dialled(greeting->host, stream);
  if (greeting->kind == DialGreeting::Kind::kTransport)
    return events_.host_dialled(greeting->host, stream);
  stream->stop();
  events_.signal_reported(*greeting);
}

// The key of nodes that join may be known to many; only the hosts of this job have the other key.
// Each key permits only its own kind of greeting.
bool DialBackListener::may_greet(const DialGreeting& greeting, const DialBackStream& stream) const {
  const bool has_join_key = !join_identity_.empty() && stream.identity() == join_identity_;
  return has_join_key == (greeting.kind == DialGreeting::Kind::kJoin);
}

std::string DialBackListener::listening_text() const {
  std::vector<std::string> texts;
  for (const DialAddress& address : addresses_)
    texts.push_back(with_port(address.address, address.port));
  return joined(texts, " ");
}

// Closes connections that stay half open too long. They are not reported, because the host, or this
// process, may have been suspended.
void DialBackListener::close_expired_half_open() {
  timer_.expires_after(std::chrono::seconds(1));
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->is_closed_) return;
    const std::uint64_t oldest =
        monotonic_ns() - std::uint64_t{std::chrono::nanoseconds(kHalfOpenTime).count()};
    while (!self->half_open_.empty() && self->half_open_.front().since_ns < oldest) {
      self->half_open_.front().stream->stop();
      self->half_open_.pop_front();
    }
    self->close_expired_half_open();
  });
}

void DialBackListener::report_rejected(const std::string& address, const std::string& why) {
  const std::string both = address + " " + why;
  if (reported_.size() >= kMaxReported ||
      std::find(reported_.begin(), reported_.end(), both) != reported_.end())
    return;
  reported_.push_back(both);
  events_.peer_rejected(address, why);
}

void DialBackListener::close() {
  if (std::exchange(is_closed_, true)) return;
  error_code ignored;
  for (tcp::acceptor& listener : listeners_) listener.close(ignored);
  for (const HalfOpen& entry : half_open_) entry.stream->stop();
  half_open_.clear();
  timer_.cancel();
}

}  // namespace ivy
