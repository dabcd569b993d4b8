#include "agent/node/workers/input_pipe.h"

#include <unistd.h>

#include <boost/system/error_code.hpp>
#include <cerrno>
#include <utility>

namespace ivy {

InputPipe::InputPipe(boost::asio::io_context& loop, link::Session& session,
                     std::function<void()> granted)
    : pipe_(loop), session_(session), granted_(std::move(granted)) {}

void InputPipe::open(Descriptor fd) {
  if (state_ != State::kNoWorker) return;
  pipe_.assign(fd.release());
  state_ = State::kOpen;
  write_some();
}

void InputPipe::push(std::string bytes) {
  if (state_ == State::kClosed) {
    session_.grant(bytes.size());
    granted_();
    return;
  }
  waiting_.push_back(std::move(bytes));
  if (state_ == State::kOpen) write_some();
}

void InputPipe::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  boost::system::error_code ignored;
  pipe_.close(ignored);
  while (!waiting_.empty()) drop_front();
  granted_();
}

void InputPipe::drop_front() {
  session_.grant(waiting_.front().size());
  waiting_.pop_front();
  written_bytes_ = 0;
}

void InputPipe::wait() {
  if (is_waiting_) return;
  is_waiting_ = true;
  pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                   [this](const boost::system::error_code& error) {
                     is_waiting_ = false;
                     if (!error && state_ == State::kOpen) write_some();
                   });
}

void InputPipe::write_some() {
  while (!waiting_.empty()) {
    const std::string& front = waiting_.front();
    if (front.empty()) return close();
    const ssize_t count = ::write(pipe_.native_handle(), front.data() + written_bytes_,
                                  front.size() - written_bytes_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return wait();
    if (count < 0) return close();
    written_bytes_ += static_cast<std::size_t>(count);
    if (written_bytes_ < front.size()) return wait();
    drop_front();
    granted_();
  }
}

}  // namespace ivy
