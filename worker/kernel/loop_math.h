// Functions of F64 for loops that are compiled once for each instruction set: additions,
// multiplications, divisions and selections without branches, so that the compiler vectorises loops
// of them and all instruction sets give the same bits.
//
// A file of loops includes this one after hwy/foreach_target.h and hwy/highway.h.
#if defined(SHARDMESH_WORKER_KERNEL_LOOP_MATH_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARDMESH_WORKER_KERNEL_LOOP_MATH_H_
#undef SHARDMESH_WORKER_KERNEL_LOOP_MATH_H_
#else
#define SHARDMESH_WORKER_KERNEL_LOOP_MATH_H_
#endif

#include <bit>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace shardmesh::worker::HWY_NAMESPACE {
namespace {

inline float Quiet(float nan) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nan) | 0x00400000u);
}
inline double Quiet(double nan) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(nan) | 0x0008000000000000u);
}

inline double Least(double a, double b) { return a < b ? a : b; }
inline double Greatest(double a, double b) { return a > b ? a : b; }
inline double Magnitude(double x) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & 0x7FFFFFFFFFFFFFFFu);
}
inline double WithSignOf(double magnitude, double sign) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(magnitude) |
                               (std::bit_cast<uint64_t>(sign) & 0x8000000000000000u));
}

// The sum of this number and one of magnitude up to 2^51 has no fraction bits left: the addition
// rounds to the nearest integer, and the low bits of the sum are this integer.
constexpr double kRoundToInteger = 0x1.8p52;
constexpr double kLog2E = 0x1.71547652b82fep+0;
// The first part has so few bits that its products with integers are exact.
constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// Returns e^x with a relative error below 5e-11. Requires |x| <= 700.
inline double Exp(double x) {
  const double shifted = x * kLog2E + kRoundToInteger;
  const double power = shifted - kRoundToInteger;
  const double r = (x - power * kLn2High) - power * kLn2Low;  // within ln(2) / 2
  // 1 + r + r^2 times a polynomial that is fitted to e^r.
  double sum = 0x1.9f085ba09a7a8p-13;
  sum = sum * r + 0x1.6d8d5278153f0p-10;
  sum = sum * r + 0x1.11127144a4e83p-7;
  sum = sum * r + 0x1.55548d7453fc6p-5;
  sum = sum * r + 0x1.5555544292cacp-3;
  sum = sum * r + 0x1.0000003a4637dp-1;
  sum = sum * (r * r) + r + 1;
  // The low bits of `shifted` become the exponent.
  return std::bit_cast<double>(std::bit_cast<uint64_t>(sum) +
                               (std::bit_cast<uint64_t>(shifted) << 52));
}

// Returns 2^power. Requires an integer from -1022 to 1023.
inline double PowerOfTwo(double power) {
  return std::bit_cast<double>((std::bit_cast<uint64_t>(power + kRoundToInteger) + 1023) << 52);
}

// x = power * ln(2) + r, and e^r - 1, with the full precision of F64.
struct ExpParts {
  double power;
  double tail;
};
inline ExpParts SplitExp(double x) {
  const double power = (x * kLog2E + kRoundToInteger) - kRoundToInteger;
  const double r = (x - power * kLn2High) - power * kLn2Low;
  // The Taylor series up to r^13: the next term is below 2^-57.
  double sum = 1.0 / 6227020800;
  sum = sum * r + 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  return {power, r + sum * (r * r)};
}

// Returns e^x with a relative error below 4e-16; for results below 2^-1022 with an error below
// 2^-1074. Gives infinity above about 709.8. Requires that x is not a NaN.
inline double ExactExp(double x) {
  const ExpParts parts = SplitExp(Least(Greatest(x, -746), 710));
  // Two factors, since 2^1024 is no F64. Halving rounds in the same way everywhere.
  const double half = (0.5 * parts.power + kRoundToInteger) - kRoundToInteger;
  return (1 + parts.tail) * PowerOfTwo(half) * PowerOfTwo(parts.power - half);
}

// Returns e^x - 1 with a relative error below 1e-15. Requires 0 <= x <= 700.
inline double ExpMinusOne(double x) {
  const ExpParts parts = SplitExp(x);
  const double factor = PowerOfTwo(parts.power);
  return factor * parts.tail + (factor - 1);
}

// Returns the natural logarithm with an error of about a unit in the last place; a NaN for negative
// numbers. Source: e_log.c of fdlibm (Sun Microsystems, 1993): with s = f / (2 + f), log(1 + f) is
// f - f^2/2 + s (f^2/2 + R(s^2)).
inline double Log(double x) {
  const bool is_small = x < 0x1p-1022;
  const uint64_t bits = std::bit_cast<uint64_t>(is_small ? x * 0x1p54 : x);
  // The fraction is within sqrt(1/2) and sqrt(2). The exponent becomes a number without a
  // conversion of integers, for which some instruction sets have no vector operation.
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  const uint64_t biased = (bits - kSqrtHalf + (uint64_t{2048} << 52)) >> 52;
  const uint64_t fraction = bits - ((biased - 2048) << 52);
  const double exponent =
      (std::bit_cast<double>(biased | 0x4330000000000000u) - (0x1p52 + 2048)) - (is_small ? 54 : 0);
  const double f = std::bit_cast<double>(fraction) - 1;
  const double s = f / (2 + f);
  const double z = s * s;
  double sum = 1.479819860511658591e-01;
  sum = sum * z + 1.531383769920937332e-01;
  sum = sum * z + 1.818357216161805012e-01;
  sum = sum * z + 2.222219843214978396e-01;
  sum = sum * z + 2.857142874366239149e-01;
  sum = sum * z + 3.999999999940941908e-01;
  sum = sum * z + 6.666666666666735130e-01;
  const double half = 0.5 * f * f;
  const double result =
      exponent * kLn2High - ((half - (s * (half + sum * z) + exponent * kLn2Low)) - f);
  constexpr double kInfinite = std::bit_cast<double>(uint64_t{0x7FF0000000000000});
  constexpr double kNotANumber = std::bit_cast<double>(uint64_t{0x7FF8000000000000});
  if (x != x) return Quiet(x);
  if (x < 0) return kNotANumber;
  if (x == 0) return -kInfinite;
  return x == kInfinite ? kInfinite : result;
}

// Sets the sine and the cosine of x, with an error below 1e-15. Requires |x| <= 2^31 * pi / 2.
// Beyond this, both stay between -1 and 1, but mean nothing.
inline void SineAndCosine(double x, double& sine, double& cosine) {
  // Pi / 2 in three parts. The first two have 22 bits, so that their products with integers up to
  // 2^31, and the differences below, are exact.
  constexpr double kHigh = 0x1.921fbp+0;
  constexpr double kMiddle = 0x1.5110bp-22;
  constexpr double kLow = 0x1.18469898cc517p-44;
  const double shifted = x * 0x1.45f306dc9c883p-1 + kRoundToInteger;
  const double quarter = shifted - kRoundToInteger;
  double r = ((x - quarter * kHigh) - quarter * kMiddle) - quarter * kLow;  // within pi / 4
  r = Least(Greatest(r, -1), 1);
  const double z = r * r;
  // The Taylor series; the next terms are below 2^-54.
  double of_sine = 1.0 / -1307674368000;
  of_sine = of_sine * z + 1.0 / 6227020800;
  of_sine = of_sine * z - 1.0 / 39916800;
  of_sine = of_sine * z + 1.0 / 362880;
  of_sine = of_sine * z - 1.0 / 5040;
  of_sine = of_sine * z + 1.0 / 120;
  of_sine = of_sine * z - 1.0 / 6;
  const double s = r + r * z * of_sine;
  double of_cosine = 1.0 / 20922789888000;
  of_cosine = of_cosine * z - 1.0 / 87178291200;
  of_cosine = of_cosine * z + 1.0 / 479001600;
  of_cosine = of_cosine * z - 1.0 / 3628800;
  of_cosine = of_cosine * z + 1.0 / 40320;
  of_cosine = of_cosine * z - 1.0 / 720;
  of_cosine = of_cosine * z + 1.0 / 24;
  const double c = 1 - 0.5 * z + z * z * of_cosine;
  const uint64_t quadrant = std::bit_cast<uint64_t>(shifted);
  const bool is_swapped = (quadrant & 1) != 0;
  const double sine_magnitude = is_swapped ? c : s;
  const double cosine_magnitude = is_swapped ? s : c;
  sine = (quadrant & 2) != 0 ? -sine_magnitude : sine_magnitude;
  cosine = ((quadrant + 1) & 2) != 0 ? -cosine_magnitude : cosine_magnitude;
}

}  // namespace
}  // namespace shardmesh::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHARDMESH_WORKER_KERNEL_LOOP_MATH_H_
