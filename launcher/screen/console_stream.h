// SPDX-License-Identifier: Apache-2.0
// A console and the queue of workers' bytes that wait for it. Decides which bytes are shown now,
// which are dropped, and when unfinished lines and the newest state of progress bars appear.
//
// Thread: the loop's. Lifetime: destroy it outside its events; lanes outlive their generation.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/screen/chunk_queue.h"
#include "launcher/screen/console.h"

namespace ivy {

class ConsoleStream;

// The owner of the streams: their Output.
class ConsoleStreamEvents {
 public:
  // Bytes of a host's output have left, or were dropped.
  virtual void stream_consumed(int host_index, std::uint64_t bytes) = 0;
  // is_idle() may be true now.
  virtual void stream_moved() = 0;
  // Once. From now on everything is consumed without being shown.
  virtual void stream_failed(const ConsoleStream& stream, int errno_value) = 0;

 protected:
  ~ConsoleStreamEvents() = default;
};

class ConsoleStream final : private ConsoleEvents {
 public:
  ConsoleStream(boost::asio::io_context& loop, int fd, const OutputOptions& options,
                ConsoleStreamEvents& owner);
  ~ConsoleStream() { *alive_ = false; }

  // Shows the queued bytes of the ended generation and forgets its lanes. is_alone: one rank
  // without a label, whose bytes pass through.
  void begin(bool is_alone);
  // Numbers the lane and gives it its filter.
  void add(Lane& lane);
  // Bytes of a lane, and whether its stream ends with them.
  void accept(Lane& lane, std::string_view bytes, bool end);
  // Terminates the unfinished lines of all lanes, after the queued bytes.
  void end_lanes();
  // Shows as many of the queued bytes as there is room for.
  void flush();
  void say(std::string_view text);
  void set_status(const std::string& text);

  bool is_idle() const { return queue_.empty() && console_.is_idle(); }
  void check_reader() { console_.check_reader(); }
  std::uint64_t written() const { return console_.written(); }
  // The lane's end is among the last few lines, so it can be read there.
  bool is_just_shown(const Lane& lane) const;

 private:
  // ConsoleEvents
  void console_consumed(int host_index, std::uint64_t bytes) override {
    owner_.stream_consumed(host_index, bytes);
  }
  void console_has_room() override;
  void console_failed(int errno_value) override;

  ConsoleStyle style() const;
  std::string_view drop_some(Lane& lane, std::string_view bytes);
  void drop(Lane& lane, std::string_view bytes);
  void process(Lane& lane, ChunkKind kind, std::string_view bytes);
  void process_front();
  void enqueue_end(Lane& lane);
  void drain();
  void schedule_flush();
  void await_partial(Lane& lane);
  bool show_due(Lane& lane, std::int64_t now_ns);
  std::int64_t state_delay() const;
  std::int64_t partial_delay() const;
  void arm(std::int64_t due_ns);
  void arm_bottom();
  void arm_held();
  void on_timer();

  boost::asio::io_context& loop_;
  const int fd_;
  const OutputOptions options_;
  ConsoleStreamEvents& owner_;
  Console console_;
  ChunkQueue queue_;
  std::vector<Lane*> lanes_;
  std::size_t shown_[2] = {0, 0};  // Lanes of each stream that reach the console.
  std::vector<Lane*> waiting_;     // Lanes with an unfinished line.
  std::uint64_t lines_ = 0;        // Workers' lines shown so far.
  bool flush_scheduled_ = false;
  boost::asio::steady_timer timer_;
  std::int64_t timer_due_ns_ = 0;  // 0 while the timer is not armed.
  std::int64_t last_drawn_ns_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy
