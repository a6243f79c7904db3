// SPDX-License-Identifier: MIT
//! @file Random numbers that are the same on every platform, and the environment variables that steer them.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace mori_ep::test {

//! @brief splitmix64: tiny, and every seed is as good as any other.
class Rng {
 public:
  explicit constexpr Rng(std::uint64_t seed) noexcept : state_(seed) {}
  constexpr std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  //! @brief One of [low, high].
  constexpr int in(int low, int high) noexcept {
    return low + static_cast<int>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  constexpr bool one_in(int n) noexcept { return in(1, n) == 1; }
  template <class T, std::size_t N>
  constexpr T of(const T (&choices)[N]) noexcept {
    return choices[next() % N];
  }

 private:
  std::uint64_t state_;
};

//! @brief A well-mixed 64-bit value of up to four numbers.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0, std::uint64_t d = 0) noexcept {
  return Rng(a +
             0x632be59bd9b4e019ull * Rng(b + 0x632be59bd9b4e019ull * Rng(c + 0x632be59bd9b4e019ull * d).next()).next())
      .next();
}

inline std::uint64_t env_number(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? fallback : std::strtoull(text, nullptr, 0);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

//! @brief How often to repeat: `full` in a normal build, `reduced` where a sanitizer makes everything ten times slower.
constexpr int scaled(int full, int reduced) noexcept { return kSanitized ? reduced : full; }

}  // namespace mori_ep::test
