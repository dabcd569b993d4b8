#include "agent/node/output_pump.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <utility>

namespace ivy {
namespace {

// Chunks per turn of the loop, so that exits and commands are served between them.
constexpr int kChunksPerTurn = 16;

}  // namespace

struct OutputPump::Stream {
  Stream(boost::asio::io_context& loop, int fd) : pipe(loop, fd) {}

  boost::asio::posix::stream_descriptor pipe;
  StreamName name;
  std::uint64_t queued_bytes = 0;  // Given to the session.
  std::optional<RankLog> log;
  std::function<void()> ended;
  std::optional<std::size_t> bytes_left;  // After cut(): what is still read.
  bool is_ready = false;                  // Stands in ready_.
  bool is_over = false;
};

OutputPump::OutputPump(boost::asio::io_context& loop, link::Session& session, Handlers handlers)
    : loop_(loop),
      session_(session),
      handlers_(std::move(handlers)),
      buffer_(std::make_unique_for_overwrite<char[]>(kChunkBytes)) {}

OutputPump::~OutputPump() = default;

OutputPump::StreamId OutputPump::add(int fd, const StreamName& name, std::optional<RankLog> log,
                                     std::function<void()> ended) {
  auto stream = std::make_unique<Stream>(loop_, fd);
  stream->name = name;
  stream->log = std::move(log);
  stream->ended = std::move(ended);
  wait(*stream);
  streams_.push_back(std::move(stream));
  return streams_.size() - 1;
}

void OutputPump::wait(Stream& stream) {
  stream.pipe.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [this, &stream](const boost::system::error_code& error) {
                           if (error || stream.is_over || stream.is_ready) return;
                           stream.is_ready = true;
                           ready_.push_back(&stream);
                           pump();
                         });
}

bool OutputPump::has_room() const {
  return discarding_ || session_.flow_room() >= link::kOutputHeaderBytes + kLeastRoomBytes;
}

void OutputPump::pump() {
  for (int chunk = 0; chunk < kChunksPerTurn && !ready_.empty() && has_room(); ++chunk) {
    Stream& stream = *ready_.front();
    ready_.pop_front();
    stream.is_ready = false;
    read_once(stream);
  }
  if (ready_.empty() || !has_room() || again_posted_) return;
  again_posted_ = true;
  boost::asio::post(loop_, [this] {
    again_posted_ = false;
    pump();
  });
}

void OutputPump::read_once(Stream& stream) {
  std::size_t limit = kChunkBytes;
  if (!discarding_)
    limit = std::min<std::size_t>(limit, session_.flow_room() - link::kOutputHeaderBytes);
  if (stream.bytes_left) limit = std::min(limit, *stream.bytes_left);
  if (limit == 0) return end(stream);
  const ssize_t count = ::read(stream.pipe.native_handle(), buffer_.get(), limit);
  if (count == 0) return end(stream);
  const bool is_empty = count < 0 && errno == EAGAIN;
  if (count < 0 && !is_empty && errno != EINTR) return end(stream);
  if (is_empty && stream.bytes_left) return end(stream);
  if (count > 0) {
    if (stream.bytes_left) *stream.bytes_left -= static_cast<std::size_t>(count);
    forward(stream, std::string_view(buffer_.get(), static_cast<std::size_t>(count)));
  }
  // A short read has emptied the pipe; asking the kernel again would cost another call.
  if (!stream.bytes_left && (is_empty || (count > 0 && static_cast<std::size_t>(count) < limit)))
    return wait(stream);
  stream.is_ready = true;
  ready_.push_back(&stream);
}

void OutputPump::forward(Stream& stream, std::string_view bytes) {
  if (stream.log) {
    const Result<void> written = stream.log->write(bytes);
    if (!written.ok()) handlers_.log_failed(written.error().message);
  }
  if (discarding_) return;
  const link::OutputChunk chunk{stream.name.generation, stream.name.rank, stream.name.stream, false,
                                bytes};
  stream.queued_bytes += bytes.size();
  session_.send_flow(link::FrameType::kOutput, link::encode_output(chunk));
  handlers_.queued();
}

void OutputPump::end(Stream& stream) {
  stream.is_over = true;
  stream.log.reset();
  boost::system::error_code ignored;
  stream.pipe.close(ignored);
  const link::OutputChunk chunk{
      stream.name.generation, stream.name.rank, stream.name.stream, true, {}};
  session_.send_flow(link::FrameType::kOutput, link::encode_output(chunk));
  handlers_.queued();
  stream.ended();
}

void OutputPump::cut(StreamId id) {
  Stream& stream = *streams_[id];
  if (stream.is_over || stream.bytes_left) return;
  int held_bytes = 0;
  if (ioctl(stream.pipe.native_handle(), FIONREAD, &held_bytes) != 0) held_bytes = 0;
  stream.bytes_left = static_cast<std::size_t>(held_bytes);
  if (!stream.is_ready) {
    stream.is_ready = true;
    ready_.push_back(&stream);
  }
  pump();
}

std::vector<OutputPump::Progress> OutputPump::progress() const {
  std::vector<Progress> all;
  for (const std::unique_ptr<Stream>& stream : streams_)
    all.push_back(Progress{stream->name, stream->queued_bytes, stream->is_over});
  return all;
}

void OutputPump::discard() {
  discarding_ = true;
  pump();
}

}  // namespace ivy
