#include "launcher/links/srun/dial_back_link.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/links/remote_entry.h"

namespace ivy {

DialBackLink::DialBackLink(boost::asio::io_context& loop, std::shared_ptr<SrunStep> step,
                           std::string host, Handlers handlers)
    : loop_(loop), step_(std::move(step)), host_(std::move(host)), handlers_(std::move(handlers)) {}

DialBackLink::~DialBackLink() { close(); }

void DialBackLink::open(const OpenRequest& request) {
  request_ = request;
  guest_.came = [this](std::shared_ptr<DialBackStream> stream) { serve(std::move(stream)); };
  guest_.failed = [this](const LinkDown& down) { fail(down); };
  guest_.progress = [this](const RemoteText& text) { handlers_.progress(text); };
  // Not from inside the handler: the new connection waits in the step until a link takes it.
  guest_.came_again = [this] {
    boost::asio::post(loop_, [this, alive = alive_] {
      if (*alive)
        fail(LinkDown{LinkFailure::kBroken, host_ + " has dialled again: it did not hear us", ""});
    });
  };
  step_->wait_for(request, host_, guest_);
}

void DialBackLink::serve(std::shared_ptr<DialBackStream> stream) {
  stream_ = std::move(stream);
  DialBackStream::Handlers handlers;
  handlers.bytes = [this](std::string_view bytes) { take(bytes); };
  handlers.drained = [this] {
    if (std::exchange(owes_drained_, false)) handlers_.drained();
  };
  handlers.ended = [this](const std::string& why) {
    fail(LinkDown{LinkFailure::kBroken, "its connection ended (" + why + ")", ""});
  };
  stream_->write(opening_line(request_));
  LinkUp up;
  up.carrier = Carrier::kSrun;
  up.peer_address = stream_->peer_address();
  up.local_address = stream_->local_address();
  up.remote_command = step_->command_text();
  up.listening = step_->listening_text();
  const std::shared_ptr<bool> alive = alive_;
  const std::shared_ptr<DialBackStream> served = stream_;
  handlers_.up(up);
  if (*alive) served->start(std::move(handlers));
}

void DialBackLink::take(std::string_view bytes) {
  if (greeting_.is_past()) return handlers_.bytes(bytes);
  const std::shared_ptr<bool> alive = alive_;
  for (const GreetingEvent& event : greeting_.feed(bytes)) {
    if (event.kind == GreetingEvent::Kind::kFail) return fail(relay_failure(event.text));
    handlers_.bytes(event.text);
    if (!*alive) return;
  }
}

void DialBackLink::write(std::string bytes) {
  owes_drained_ = true;
  stream_->write(bytes);
}

void DialBackLink::close() {
  if (!std::exchange(*alive_, false)) return;
  step_->leave(request_.host, guest_);
  if (stream_) stream_->stop();
}

void DialBackLink::fail(const LinkDown& down) {
  if (!*alive_) return;
  const auto report = handlers_.down;
  close();
  report(down);
}

}  // namespace ivy
