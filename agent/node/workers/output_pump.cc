// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/output_pump.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <utility>

#include "agent/node/workers/lease.h"

namespace ivy {
namespace {

// Chunks per turn of the loop, so that exits and commands are served between them.
constexpr int kChunksPerTurn = 16;
// A longer tick means that this process itself was suspended.
constexpr std::uint64_t kLongestTickNs = kNanosPerSecond / 2;

}  // namespace

struct OutputPump::Stream {
  Stream(boost::asio::io_context& loop, int fd) : pipe(loop, fd) {}

  boost::asio::posix::stream_descriptor pipe;
  StreamName name;
  std::uint64_t queued_bytes = 0;   // Bytes passed to the session.
  std::optional<NodeRankFile> log;  // Absent once it is closed or given up.
  bool log_failed = false;
  std::function<void()> ended;
  std::optional<std::size_t> bytes_left;  // After cut(): bytes still to read.
  bool is_ready = false;                  // It is in ready_ or held_.
  bool is_over = false;
  bool is_cut = false;
  bool is_mid_line = false;  // The last bytes read did not end with a line end.
  bool breaks_line = false;  // The rank's previous process left such a line.
};

OutputPump::OutputPump(boost::asio::io_context& loop, session::Session& session,
                       OutputPumpEvents& owner)
    : loop_(loop),
      session_(session),
      owner_(owner),
      buffer_(std::make_unique_for_overwrite<char[]>(kChunkBytes)) {}

OutputPump::~OutputPump() = default;

OutputPump::StreamId OutputPump::add(int fd, const StreamName& name,
                                     const std::optional<NodeRankFile::Name>& log,
                                     std::function<void()> ended) {
  auto stream = std::make_unique<Stream>(loop_, fd);
  stream->name = name;
  std::uint64_t before = 0;  // Bytes of the rank's earlier processes.
  for (const std::unique_ptr<Stream>& other : streams_) {
    if (other->name != name) continue;
    before += other->queued_bytes;
    if (other->queued_bytes > 0) stream->breaks_line = other->is_mid_line;
  }
  if (log) {
    NodeRankFile::Name file = *log;
    file.offset = before;
    open_log(*stream, file);
  }
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

bool OutputPump::has_credit() const {
  return discarding_ || session_.flow_room() >= session::kOutputHeaderBytes + kMinFreeBytes;
}

void OutputPump::pump() {
  for (int chunk = 0; chunk < kChunksPerTurn && !ready_.empty() && has_credit(); ++chunk) {
    Stream& stream = *ready_.front();
    ready_.pop_front();
    if (stream.log && !writer_->has_room()) {
      held_.push_back(&stream);
      continue;
    }
    stream.is_ready = false;
    read_once(stream);
  }
  if (ready_.empty() || !has_credit() || again_posted_) return;
  again_posted_ = true;
  boost::asio::post(loop_, [this] {
    again_posted_ = false;
    pump();
  });
}

void OutputPump::read_once(Stream& stream) {
  std::size_t limit = kChunkBytes;
  if (!discarding_)
    limit = std::min<std::size_t>(limit, session_.flow_room() - session::kOutputHeaderBytes);
  if (stream.bytes_left) limit = std::min(limit, *stream.bytes_left);
  if (limit == 0) return end(stream);
  // Leave room for the line end that is inserted first.
  if (stream.breaks_line && limit > 1) --limit;
  const ssize_t count = ::read(stream.pipe.native_handle(), buffer_.get(), limit);
  if (count == 0) return end(stream);
  const bool is_empty = count < 0 && errno == EAGAIN;
  if (count < 0 && !is_empty && errno != EINTR) return end(stream);
  if (is_empty && stream.bytes_left) return end(stream);
  if (count > 0) {
    if (stream.bytes_left) *stream.bytes_left -= static_cast<std::size_t>(count);
    forward(stream, std::string_view(buffer_.get(), static_cast<std::size_t>(count)));
  }
  // A short read has emptied the pipe; another read would only cost a system call.
  if (!stream.bytes_left && (is_empty || (count > 0 && static_cast<std::size_t>(count) < limit)))
    return wait(stream);
  stream.is_ready = true;
  ready_.push_back(&stream);
}

void OutputPump::forward(Stream& stream, std::string_view bytes) {
  if (std::exchange(stream.breaks_line, false)) return forward(stream, "\n" + std::string(bytes));
  stream.is_mid_line = bytes.back() != '\n';
  if (stream.log) stream.log->write(bytes);
  if (discarding_) return;
  const session::OutputChunk chunk{stream.name.generation, stream.name.rank, stream.name.stream,
                                   false, bytes};
  stream.queued_bytes += bytes.size();
  session_.send_flow(session::FrameType::kOutput, session::encode_output(chunk));
  owner_.output_queued();
}

void OutputPump::end(Stream& stream) {
  stream.is_over = true;
  boost::system::error_code ignored;
  stream.pipe.close(ignored);
  const session::OutputChunk chunk{
      stream.name.generation, stream.name.rank, stream.name.stream, true, {}};
  session_.send_flow(session::FrameType::kOutput, session::encode_output(chunk));
  owner_.output_queued();
  if (stream.log)
    stream.log->close();
  else
    stream.ended();
}

void OutputPump::open_log(Stream& stream, const NodeRankFile::Name& name) {
  if (!writer_) {
    writer_ = std::make_unique<FileWriter>(
        kLogRoomBytes, [this, alive = std::weak_ptr<bool>(alive_), &loop = loop_] {
          boost::asio::post(loop, [this, alive] {
            if (!alive.expired()) logs_moved();
          });
        });
  }
  stream.log.emplace(*writer_, name);
  logs_[stream.log->file()] = &stream;
}

void OutputPump::logs_moved() {
  for (const FileWriter::Done& done : writer_->take_done()) {
    logs_have_moved_ = true;
    const auto found = logs_.find(done.file);
    if (found == logs_.end()) continue;  // The stream was given up during the write.
    Stream& stream = *found->second;
    if (done.errno_value != 0 && !std::exchange(stream.log_failed, true))
      owner_.log_failed(
          errno_error(Code::kUnavailable, "log file " + stream.log->path(), done.errno_value)
              .message);
    if (done.step != FileWriter::Step::kClose) continue;
    logs_.erase(found);
    stream.log.reset();
    stream.ended();
  }
  if (writer_->has_room()) {
    ready_.insert(ready_.end(), held_.begin(), held_.end());
    held_.clear();
  }
  pump();
}

void OutputPump::tick(std::uint64_t elapsed_ns, std::uint64_t timeout_ns) {
  if (logs_.empty()) return;
  const bool is_stalled = !std::exchange(logs_have_moved_, false) && !writer_->is_idle();
  logs_stalled_ns_ = is_stalled ? logs_stalled_ns_ + std::min(elapsed_ns, kLongestTickNs) : 0;
  if (logs_stalled_ns_ < timeout_ns) return;
  for (const std::unique_ptr<Stream>& stream : streams_)
    if (stream->is_cut && stream->log) give_up_log(*stream, timeout_ns);
  pump();
}

void OutputPump::give_up_log(Stream& stream, std::uint64_t timeout_ns) {
  if (!std::exchange(stream.log_failed, true))
    owner_.log_failed("log file " + stream.log->path() +
                      ": the file system has accepted no data for " +
                      std::to_string(timeout_ns / kNanosPerSecond) + " s");
  logs_.erase(stream.log->file());
  if (!stream.is_over) stream.log->close();
  stream.log.reset();
  if (stream.is_over) return stream.ended();
  if (std::erase(held_, &stream) > 0) ready_.push_back(&stream);
}

void OutputPump::cut(StreamId id) {
  Stream& stream = *streams_[id];
  stream.is_cut = true;
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
