#include "launcher/links/srun/dial_back_link.h"

#include <utility>

#include "launcher/links/remote_entry.h"

namespace ivy {

DialBackLink::DialBackLink(boost::asio::io_context& loop, std::shared_ptr<DialBackHosts> hosts,
                           std::string host, Handlers handlers)
    : hosts_(std::move(hosts)),
      host_(std::move(host)),
      reports_(std::move(handlers)),
      second_dial_(loop) {}

DialBackLink::~DialBackLink() { close(); }

void DialBackLink::open(const OpenRequest& request) {
  request_ = request;
  client_.came = [this](std::shared_ptr<DialBackStream> stream) { serve(std::move(stream)); };
  client_.failed = [this](const LinkDown& down) { fail(down); };
  client_.progress = [this](const RemoteText& text) { reports_.progress(text); };
  client_.came_again = [this] { second_dial_.start(give_way()); };
  hosts_->wait_for(request, host_, client_);
}

// The new connection waits in the step until a link takes it.
Awaitable<void> DialBackLink::give_way() {
  fail(LinkDown{LinkFailure::kBroken, host_ + " has dialled again: it did not hear us", ""});
  co_return;
}

void DialBackLink::serve(std::shared_ptr<DialBackStream> stream) {
  stream_ = std::move(stream);
  DialBackStream::Handlers handlers;
  handlers.bytes = [this](std::string_view bytes) { take(bytes); };
  handlers.drained = [this] {
    if (std::exchange(owes_drained_, false)) reports_.drained();
  };
  handlers.ended = [this](const std::string& why) {
    fail(LinkDown{LinkFailure::kBroken, "its connection ended (" + why + ")", ""});
  };
  stream_->write(opening_line(request_));
  LinkUp up;
  up.carrier = hosts_->carrier();
  up.peer_address = stream_->peer_address();
  up.local_address = stream_->local_address();
  up.remote_command = hosts_->command_text();
  up.listening = hosts_->listening_text();
  reports_.up(up);
  if (reports_.is_open()) stream_->start(std::move(handlers));
}

void DialBackLink::take(std::string_view bytes) {
  if (greeting_.is_past()) return reports_.bytes(bytes);
  for (const GreetingEvent& event : greeting_.feed(bytes)) {
    if (event.kind == GreetingEvent::Kind::kFail) return fail(relay_failure(event.text));
    reports_.bytes(event.text);
  }
}

void DialBackLink::write(std::string bytes) {
  owes_drained_ = true;
  stream_->write(bytes);
}

void DialBackLink::close() {
  if (!reports_.is_open()) return;
  reports_.close();
  release();
}

void DialBackLink::release() {
  second_dial_.stop();
  hosts_->leave(request_.host, client_);
  if (stream_) stream_->stop();
}

void DialBackLink::fail(const LinkDown& down) {
  if (!reports_.is_open()) return;
  release();
  reports_.down(down);
}

}  // namespace ivy
