//! Tests of the whole pipeline on a checkout with a llama.cpp of three files and an engine of one file. Such a build
//! takes seconds and can be broken, stopped and resumed. Compilers, CMake, ninja and cargo are the real programs.

mod bolt;
mod checkout;
mod faults;
mod interrupts;
#[path = "../common/tools.rs"]
mod tools;
mod whole;
