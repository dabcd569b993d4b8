// SPDX-License-Identifier: Apache-2.0
// Guards handlers that the loop holds for an object: a guarded handler does nothing after end(), or
// if its wait failed. Thread: the loop's.
#pragma once

#include <boost/system/error_code.hpp>
#include <memory>
#include <utility>

namespace ivy::store {

class Alive {
 public:
  template <class Then>
  auto guard(Then then) const {
    return [token = std::weak_ptr<const bool>(token_),
            then = std::move(then)](const boost::system::error_code& error = {}) {
      if (!error && !token.expired()) then();
    };
  }
  void end() { token_.reset(); }
  bool has_ended() const { return token_ == nullptr; }

 private:
  std::shared_ptr<const bool> token_ = std::make_shared<const bool>(true);
};

}  // namespace ivy::store
